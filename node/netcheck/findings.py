"""What follows from the facts: findings with stable codes, the worst of which decides, and a verdict. Pure.

A code never changes its meaning: scripts rely on it. `ok`: as it should be; `info`: good to know; `warn`: works, and
could be better; `bad`: does not work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from shoal.node.exits import Exit
from shoal.node.netcheck.facts import Facts
from shoal.node.peers.forwarding import ports_to_forward
from shoal.node.service import Answer
from shoal.protocol.circuit.forecast import forecasts
from shoal.protocol.multiaddrs import host_and_port

ENOUGH = 2  # peers to which large packets get lost, and it is our fault
OK, INFO, WARN, BAD = LEVELS = ("ok", "info", "warn", "bad")
RELAYS = "relays"  # what is pending while they are looked for
CLOCK_WARN, CLOCK_BAD = 1.0, 120.0  # seconds; beyond the latter others refuse what we write into the DHT


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found out: its code, how bad it is, in a sentence, and what to do."""

    code: str
    level: str
    sentence: str
    action: str = ""


def report(facts: Facts) -> Answer:
    """The answer of a node: what it is, what is wrong with it, and what will come of it."""
    found = list(findings(facts))
    sentence, action = verdict(facts)
    return {
        "settled": not facts.pending,
        "pending": list(facts.pending),
        "verdict": {"sentence": sentence, "action": action, "exit_code": int(exit_code(facts, found))},
        "findings": [asdict(each) for each in found],
        "self": facts.situation.as_json(),
        "forecast": forecasts(facts.situation),
        "addresses": {"own": list(facts.own), "found_at": list(facts.found_at), "seen_at": list(facts.seen_places)},
        "nat": nat_kind(facts),
        "mapping": facts.mapping,
        "relays": [{"peer": peer, "rtt_ms": rtt} for peer, rtt in facts.relays],
        "clock_ahead": facts.ahead,
        "port_mapping": None if facts.portmap is None else asdict(facts.portmap),
    }


def nat_kind(facts: Facts) -> str:
    """What stands between us and the internet: public, forwarded, firewall, keeping, symmetric, local or unknown."""
    if facts.reachability == "public":
        return "forwarded" if facts.is_behind_router else "public"
    if facts.reachability == "unknown":
        return "local" if facts.is_local else "unknown"
    return {"public": "firewall"}.get(facts.mapping, facts.mapping)


def exit_code(facts: Facts, found: list[Finding]) -> Exit:
    """Of the command: whether others can be met at all, and then whether anything else is broken."""
    if not facts.peers:
        return Exit.ALONE
    if facts.reachability == "nat" and not facts.relays:
        return Exit.UNKNOWN if RELAYS in facts.pending else Exit.HIDDEN
    if any(each.level == BAD for each in found):
        return Exit.NETWORK_TROUBLE
    return Exit.OK if facts.reachability != "unknown" or facts.is_local else Exit.UNKNOWN


def verdict(facts: Facts) -> tuple[str, str]:
    """In one sentence, and what to do."""
    kind = nat_kind(facts)
    if not facts.peers:
        return "This node is alone: it sees no other peer.", "start it with --bootstrap, or join a run by its link"
    sentence = {
        "public": "Others can dial this node: all connections will be direct, and nothing needs to be done.",
        "forwarded": "The router leads others to this node: all connections will be direct, and nothing needs to be "
        "done.",
        "local": "Others on this machine or its networks can dial this node; nobody from the internet has been met.",
    }.get(kind)
    if facts.reachability == "nat":
        return _unreachable(facts, kind), open_ports(facts)
    return (sentence, "") if sentence else (_unsaid(facts), "run `shoal netcheck` again")


def _unsaid(facts: Facts) -> str:
    """What is known while nobody from the internet has said anything."""
    if not facts.found_at and not facts.came:
        return "Nobody has said yet whether others can dial this node."
    who = f"Others have dialled this node at {_found_at(facts)}"
    if not facts.found_at:
        who = f"{_have(facts.came)} dialled this node"
    return f"{who}; whether most of the internet can, nobody has said yet."


def _found_at(facts: Facts) -> str:
    return ", ".join(facts.found_at)


def _unreachable(facts: Facts, kind: str) -> str:
    but = _but(facts)
    if facts.came:
        rest = "and relays carry the rest" if facts.relays else "and no relay connects the others with it"
        return f"Most others cannot dial this node, though {_have(facts.came)}, {rest}."
    if not facts.relays:
        return f"Nobody{but} can dial this node, and no relay connects others with it: it reaches public peers only."
    how = {
        "firewall": f"A firewall keeps others{but} from dialling this node; "
        "it meets most of them directly all the same",
        "keeping": f"Others{but} cannot dial this node, but it meets most of them directly",
        "symmetric": f"Others{but} cannot dial this node, and its router hides where to meet it: "
        "it connects directly with public peers only",
    }.get(kind, f"Others{but} cannot dial this node")
    return f"{how}, and relays carry the rest."


def _but(facts: Facts) -> str:
    """Who has dialled a node all the same that most of the internet cannot: nobody is told what the addresses deny."""
    by_ipv6 = [each for each in facts.found_at if each in facts.ipv6]
    who = ["those nearby"] * (len(by_ipv6) < len(facts.found_at)) + ["those who use IPv6"] * bool(by_ipv6)
    return f" but {' and '.join(who)}" if who else ""


def _have(number: int) -> str:
    return f"{number} peer{' has' if number == 1 else 's have'}"


def open_ports(facts: Facts) -> str:
    """What makes this node reachable."""
    ports = ports_to_forward(facts.port)
    if nat_kind(facts) == "firewall" or facts.has_public_address:
        return f"allow incoming {ports} in this machine's firewall, or its provider's, to be reachable"
    if facts.is_carriers_customer:
        return "ask the provider for a public address, or for IPv6: the router cannot forward what it does not get"
    if facts.is_behind_carrier:
        return "put the inner router into bridge mode, or ask the provider for a public address, or for IPv6"
    hosts = [where[0] for each in facts.own if (where := host_and_port(each)) is not None and where[0].version == 4]
    return f"forward {ports} to this machine{f' ({hosts[0]})' if hosts else ''} in the router to be reachable"


def findings(facts: Facts) -> Iterator[Finding]:
    """Everything that there is to say, reachability first."""
    if not facts.peers:
        words = "No peer is connected, so nobody can say how this node is seen."
        yield Finding("NET-SOLO", BAD, words, verdict(facts)[1])
        return
    yield _dial(facts)
    yield _nat(facts)
    if facts.is_behind_carrier:
        yield _beyond(facts)
    yield _portmap(facts)
    yield _relays(facts)
    yield _ipv6(facts)
    yield _clock(facts)
    yield _packets(facts)
    if facts.limits:
        yield Finding("NET-LIMITS", INFO, f"This node's owner lets no more pass than {facts.limits}.")


def _dial(facts: Facts) -> Finding:
    at = _found_at(facts)
    if facts.reachability == "public":
        return Finding("NET-DIAL-OK", OK, f"Others have dialled this node at {at}.")
    if facts.reachability == "nat":
        tried = "Others have tried to dial this node, and did not get through."
        if facts.found_at:
            tried = f"Others have dialled this node at {at}, but most of the internet does not get through."
        elif facts.came:
            tried = f"{_have(facts.came)} dialled this node, but most who tried when asked to did not get through."
        return Finding("NET-DIAL-NO", WARN if facts.relays else BAD, tried, open_ports(facts))
    if facts.is_local:
        return Finding("NET-DIAL-LOCAL", OK, f"Others nearby have dialled this node at {at}.")
    return Finding("NET-DIAL-UNKNOWN", WARN, _unsaid(facts), "run `shoal netcheck` again later")


def _nat(facts: Facts) -> Finding:
    seen = " and ".join(facts.seen_places) or "-"
    words = {
        "public": ("NET-NAT-NONE", OK, "No router translates this node's address."),
        "forwarded": ("NET-NAT-FORWARDED", OK, "The router forwards this node's port."),
        "firewall": ("NET-NAT-FIREWALL", WARN, "No router is in the way, but a firewall drops what comes in."),
        "keeping": ("NET-NAT-KEEPING", INFO, f"The router shows this node to all at one place, {seen}: it can be met."),
        "symmetric": ("NET-NAT-SYMMETRIC", WARN, f"The router shows this node to each at another place: {seen}."),
        "local": ("NET-NAT-LOCAL", OK, "Between this node and its peers no router was met."),
    }
    untold = ("NET-NAT-UNKNOWN", INFO, "Fewer than two relays have said where they see this node.")
    code, level, sentence = words.get(nat_kind(facts), untold)
    return Finding(code, level, sentence, open_ports(facts) if level == WARN else "")


def _beyond(facts: Facts) -> Finding:
    """The router says what it knows of it, if it was asked."""
    said = facts.portmap.error if facts.portmap and facts.portmap.behind_another_nat else None
    words = f"{said[:1].upper()}{said[1:]}." if said else "The provider translates this machine's address (CGNAT)."
    return Finding("NET-NAT-CARRIER", WARN, words, open_ports(facts) if facts.reachability == "nat" else "")


def _portmap(facts: Facts) -> Finding:
    found = facts.portmap
    if found is None:
        return Finding("NET-PORTMAP-UNTRIED", INFO, "No router is asked for a port (UPnP, NAT-PMP).")
    if found.pending:
        return Finding("NET-PORTMAP-UNTRIED", INFO, "The router is being asked for a port (UPnP, NAT-PMP).")
    if found.external and not found.behind_another_nat:
        return Finding("NET-PORTMAP-OK", OK, f"The router forwards {found.external} to this node, by {found.protocol}.")
    if found.external:
        words = f"The router forwards {found.external} to this node, but that is no address of the internet."
        return Finding("NET-PORTMAP-INSIDE", WARN, words, open_ports(facts))
    why = found.error or "no answer"
    return Finding("NET-PORTMAP-NONE", INFO, f"No router gives a port by UPnP or NAT-PMP: {why}.")


def _relays(facts: Facts) -> Finding:
    if facts.lends:
        return Finding("NET-RELAY-LENT", OK, "This node is a relay for others, within limits.")
    if facts.relays:
        each = ", ".join(f"{peer[-6:]}{f' in {rtt:.0f} ms' if rtt is not None else ''}" for peer, rtt in facts.relays)
        return Finding("NET-RELAY-OK", OK, f"Relays connect others with this node: {each}.")
    if facts.reachability == "nat":
        words = "No relay connects others with this node: no public peer is known, or none has room."
        return Finding("NET-RELAY-NONE", BAD, words, "start it with --bootstrap and the address of a public node")
    return Finding("NET-RELAY-UNNEEDED", OK, "This node needs no relay.")


def _ipv6(facts: Facts) -> Finding:
    if not facts.ipv6:
        return Finding("NET-IPV6-NONE", INFO, "This machine has no address of IPv6 that is good on the internet.")
    if facts.ipv6_answers is None:
        return Finding("NET-IPV6-UNTRIED", INFO, f"IPv6 is there ({facts.ipv6[0]}), but no peer that has it was met.")
    if facts.ipv6_answers:
        return Finding("NET-IPV6-OK", OK, f"Peers answer by IPv6; this machine is {facts.ipv6[0]}.")
    words = f"This machine has an address of IPv6 ({facts.ipv6[0]}), but nobody answers by it."
    return Finding("NET-IPV6-SILENT", WARN, words, "have IPv6 mended or turned off; Shoal does without it meanwhile")


def _clock(facts: Facts) -> Finding:
    ahead = facts.ahead
    if ahead is None:
        return Finding("NET-CLOCK-UNKNOWN", INFO, "No peer has said what its clock shows.")
    asked = f"{len(facts.clocks)} peer{'s' * (len(facts.clocks) > 1)}"
    if abs(ahead) <= CLOCK_WARN:
        return Finding("NET-CLOCK-OK", OK, f"This machine's clock is within {CLOCK_WARN:g} s of the others' ({asked}).")
    words = f"This machine's clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the others' ({asked})."
    return Finding("NET-CLOCK-OFF", BAD if abs(ahead) > CLOCK_BAD else WARN, words, "set the clock, best by NTP")


def _packets(facts: Facts) -> Finding:
    if not facts.large_packets:
        return Finding("NET-MTU-UNTRIED", INFO, "No peer was there to try large packets with.")
    if all(facts.large_packets):
        return Finding("NET-MTU-OK", OK, "Large packets come through.")
    everywhere = not any(facts.large_packets)
    where = "on all ways that were tried" if everywhere else "on some ways"
    words = f"Packets of full size get lost {where}, and nobody says so; short ones come through."
    action = "lower the MTU of this machine's interface, to 1280 say, or have its router send ICMP"
    is_sure = everywhere and len(facts.large_packets) >= ENOUGH  # one peer's way may be at fault itself
    return Finding("NET-MTU-LOST", BAD if is_sure else WARN, words, action)
