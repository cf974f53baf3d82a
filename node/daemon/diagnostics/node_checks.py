"""How a node stands in the network: the facts that it knows, and a list of checks that say what follows. Pure.

The docstring of a check is the question that it asks. Its answer is a Finding with a code, a level, a sentence and what
to do. A code never changes its meaning: scripts rely on it. Levels are `ok`: as it should be; `info`: good to know;
`warn`: works, and could be better; `bad`: does not work. netcheck.py gathers the facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from ipaddress import ip_address
from statistics import median

from shoal.node.api.answers import NetcheckReport, PortMapping
from shoal.node.base.exits import Exit
from shoal.node.peers.gateway.double_nat import is_cgnat
from shoal.node.peers.gateway.router import ports_to_forward
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.multiaddrs import host_and_port, is_public
from shoal.protocol.net.circuit.nat import Situation, forecasts

ENOUGH = 2  # peers to whom large packets must get lost before we blame this machine
OK, INFO, WARN, BAD = LEVELS = ("ok", "info", "warn", "bad")
RELAYS = "relays"  # an entry of `pending`, while relays are looked for
CLOCK_WARN, CLOCK_BAD = 1.0, 120.0  # seconds; beyond the latter, others refuse our records in the DHT


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the checks look at; what is empty or None is not known."""

    port: int = 0
    own: tuple[str, ...] = ()  # where we listen, without the loopback; the address of the default route first
    found_at: tuple[str, ...] = ()  # addresses at which others have dialled us
    seen_places: tuple[str, ...] = ()  # addresses under which relays see the port that we listen on
    came: int = 0  # connected peers of the internet that have dialled us by themselves
    peers: int = 0
    internet_peers: int = 0
    reachability: str = "unknown"  # from the internet: "public" | "nat" | "unknown"
    mapping: str = "unknown"  # see shoal.protocol.net.circuit.nat
    relays: tuple[tuple[PeerId, float | None], ...] = ()  # relays that connect others with us; round trip in ms
    lends: bool = False  # we are a relay for others
    clocks: tuple[float, ...] = ()  # seconds by which our clock is ahead of each peer's
    ipv6_answers: bool | None = None  # whether peers answer by IPv6; None: there was none to try
    large_packets: tuple[bool, ...] = ()  # for each peer that was tried, whether large packets came through
    portmap: PortMapping | None = None  # what came of asking the router for a port; None: no router is asked
    limits: str | None = None  # the owner's rate limits, in words
    is_in_runs: bool = False
    lonely: tuple[tuple[str, str], ...] = ()  # the runs in which nobody else is, and the commands by which others join
    sought: tuple[str, ...] = ()  # the other runs that need members
    pending: tuple[str, ...] = ()  # what is not known yet, and soon will be

    @property
    def situation(self) -> Situation:
        """What the path to another peer depends on."""
        known = {"public": True, "nat": False}.get(self.reachability)
        mapping = "public" if known and self.mapping == "unknown" else self.mapping
        return Situation(known, mapping, bool(self.relays))

    @property
    def ipv6(self) -> tuple[str, ...]:
        """Our public IPv6 addresses."""
        return tuple(each for each in self.own if each.startswith("/ip6/") and _is_public(each))

    @property
    def is_local(self) -> bool:
        """Whether peers of this machine or a local network have dialled us, and none of the internet is connected."""
        return self.reachability == "unknown" and bool(self.found_at) and not self.internet_peers

    @property
    def is_behind_router(self) -> bool:
        """Whether the IPv4 address under which the internet finds or sees us is not ours, and so a router's."""
        places = _of_internet(self.found_at) or _of_internet(self.seen_places)
        return bool(places) and not set(places) & set(self.own)

    @property
    def has_public_address(self) -> bool:
        """Whether this machine itself has a public IPv4 address, as far as we can tell."""
        return bool(_of_internet(self.own)) and not self.is_behind_router

    @property
    def is_behind_carrier(self) -> bool:
        """Whether we know of a second address translation, beyond our router's."""
        return self.is_carriers_customer or bool(self.portmap and self.portmap["behind_another_nat"])

    @property
    def is_carriers_customer(self) -> bool:
        """Whether our address, or the router's outside, lies in the range of carriers' networks (RFC 6598).

        Of our own addresses only that of the default route counts, because tunnels use the range, too.
        """
        where = host_and_port(self.own[0]) if self.own else None
        outside = self.portmap["external"] if self.portmap else None
        return (where is not None and is_cgnat(where[0])) or (
            outside is not None and is_cgnat(ip_address(outside.rpartition(":")[0]))
        )

    @property
    def ahead(self) -> float | None:
        """Seconds by which our clock is ahead of the others': the median, so that a few liars have no influence."""
        return median(self.clocks) if self.clocks else None


def _of_internet(addresses: Iterable[str]) -> list[str]:
    """The public IPv4 addresses among these."""
    return [each for each in addresses if each.startswith("/ip4/") and _is_public(each)]


def _is_public(address: str) -> bool:
    where = host_and_port(address)
    return where is not None and is_public(where[0])


# -- the answer ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check has found: its code, how bad it is (LEVELS), a sentence, and what to do (or "")."""

    code: str
    level: str
    sentence: str
    action: str = ""


def report(facts: Facts) -> NetcheckReport:
    """The answer of `netcheck`: where the node stands, what is wrong, and how it will connect with others."""
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
        "port_mapping": facts.portmap,
    }


def nat_kind(facts: Facts) -> str:
    """What is between us and the internet: public, forwarded, firewall, keeping, symmetric, local or unknown."""
    if facts.reachability == "public":
        return "forwarded" if facts.is_behind_router else "public"
    if facts.reachability == "unknown":
        return "local" if facts.is_local else "unknown"
    return {"public": "firewall"}.get(facts.mapping, facts.mapping)


def exit_code(facts: Facts, found: list[Finding]) -> Exit:
    """The exit code of `shoal netcheck`: first whether others can reach this node at all, then the worst finding."""
    if not facts.peers:
        return Exit.ALONE
    if facts.reachability == "nat" and not facts.relays:
        return Exit.UNKNOWN if RELAYS in facts.pending else Exit.HIDDEN
    if any(each.level == BAD for each in found):
        return Exit.NETWORK_TROUBLE
    return Exit.OK if facts.reachability != "unknown" or facts.is_local else Exit.UNKNOWN


def verdict(facts: Facts) -> tuple[str, str]:
    """(a sentence about the node as a whole, what to do or "")."""
    kind = nat_kind(facts)
    if not facts.peers:
        return "This node is alone: it sees no other peer.", _way_to_others(facts)
    sentence = {
        "public": "Others can dial this node: all connections will be direct, and nothing needs to be done.",
        "forwarded": "The router leads others to this node: all connections will be direct, and nothing needs to be "
        "done.",
        "local": "Others on this machine or its networks can dial this node; nobody from the internet has been met.",
    }.get(kind)
    if facts.reachability == "nat":
        return _unreachable(facts, kind), open_ports(facts)
    return (sentence, "") if sentence else (_unsaid(facts), "run `shoal netcheck` again")


def _way_to_others(facts: Facts) -> str:
    """What to do if no peer is connected; whoever is in a run needs no address from elsewhere."""
    if facts.lonely:
        is_one_of_several = len(facts.lonely) + len(facts.sought) > 1
        told = [
            f"send this to whoever is to join{f' {name}' if is_one_of_several else ''}: {command}"
            for name, command in facts.lonely
        ]
        sought = [f"check that the others of {' and '.join(facts.sought)} are up; it looks for them by itself"]
        return "; ".join(told + (sought if facts.sought else []))
    if facts.is_in_runs:
        return "check that the others of its runs are up, and this machine's network; it looks for them by itself"
    return "start it with --bootstrap, or join a run by its link"


def _unsaid(facts: Facts) -> str:
    """What is known while no peer of the internet has reported whether it can dial us."""
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
    """Who can dial this node although most of the internet cannot, judged by the addresses at which it was dialled."""
    by_ipv6 = [each for each in facts.found_at if each in facts.ipv6]
    who = ["those nearby"] * (len(by_ipv6) < len(facts.found_at)) + ["those who use IPv6"] * bool(by_ipv6)
    return f" but {' and '.join(who)}" if who else ""


def _have(number: int) -> str:
    return f"{number} peer{' has' if number == 1 else 's have'}"


def open_ports(facts: Facts) -> str:
    """What to do to make this node reachable."""
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
    """All findings, those about reachability first."""
    if not facts.peers:
        words = "No peer is connected, so nobody can say how this node is seen."
        yield Finding("NET-SOLO", BAD, words, verdict(facts)[1])
        return
    for check in CHECKS:
        if (found := check(facts)) is not None:
            yield found


# -- the checks -------------------------------------------------------------------------------------------------


def _dial(facts: Facts) -> Finding:
    """Can others dial this node?"""
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
    """What stands between this node and the internet?"""
    seen = " and ".join(facts.seen_places) or "-"
    found = {
        "public": Finding("NET-NAT-NONE", OK, "No router translates this node's address."),
        "forwarded": Finding("NET-NAT-FORWARDED", OK, "The router forwards this node's port."),
        "firewall": Finding("NET-NAT-FIREWALL", WARN, "No router is in the way, but a firewall drops what comes in."),
        "keeping": Finding(
            "NET-NAT-KEEPING", INFO, f"The router shows this node to all at one place, {seen}: it can be met."
        ),
        "symmetric": Finding(
            "NET-NAT-SYMMETRIC", WARN, f"The router shows this node to each at another place: {seen}."
        ),
        "local": Finding("NET-NAT-LOCAL", OK, "Between this node and its peers no router was met."),
    }.get(
        nat_kind(facts), Finding("NET-NAT-UNKNOWN", INFO, "Fewer than two relays have said where they see this node.")
    )
    return replace(found, action=open_ports(facts)) if found.level == WARN else found


def _carrier(facts: Facts) -> Finding | None:
    """Is there another router beyond this node's own? If our router was asked for a port, its error says more."""
    if not facts.is_behind_carrier:
        return None
    said = facts.portmap["error"] if facts.portmap and facts.portmap["behind_another_nat"] else None
    words = f"{said[:1].upper()}{said[1:]}." if said else "The provider translates this machine's address (CGNAT)."
    return Finding("NET-NAT-CARRIER", WARN, words, open_ports(facts) if facts.reachability == "nat" else "")


def _portmap(facts: Facts) -> Finding:
    """Did the router forward a port when it was asked?"""
    found = facts.portmap
    if found is None:
        return Finding("NET-PORTMAP-UNTRIED", INFO, "No router is asked for a port (UPnP, NAT-PMP).")
    if found["pending"]:
        return Finding("NET-PORTMAP-UNTRIED", INFO, "The router is being asked for a port (UPnP, NAT-PMP).")
    if (outside := found["external"]) and not found["behind_another_nat"]:
        return Finding("NET-PORTMAP-OK", OK, f"The router forwards {outside} to this node, by {found['protocol']}.")
    if outside:
        words = f"The router forwards {outside} to this node, but that is no address of the internet."
        return Finding("NET-PORTMAP-INSIDE", WARN, words, open_ports(facts))
    why = found["error"] or "no answer"
    return Finding("NET-PORTMAP-NONE", INFO, f"No router gives a port by UPnP or NAT-PMP: {why}.")


def _relays(facts: Facts) -> Finding:
    """Do relays connect others with this node, if it needs them?"""
    if facts.lends:
        return Finding("NET-RELAY-LENT", OK, "This node is a relay for others, within limits.")
    if facts.relays:
        each = ", ".join(f"{peer[-6:]}{f' in {rtt:.0f} ms' if rtt is not None else ''}" for peer, rtt in facts.relays)
        return Finding("NET-RELAY-OK", OK, f"Relays connect others with this node: {each}.")
    if facts.reachability == "nat":
        words = "No relay connects others with this node: no public peer is known, or none has room."
        way = "have a machine with a public address join a run of this node: it becomes a relay by itself"
        other = "start it with --bootstrap and the address of a public node"
        return Finding("NET-RELAY-NONE", BAD, words, way if facts.is_in_runs else other)
    return Finding("NET-RELAY-UNNEEDED", OK, "This node needs no relay.")


def _ipv6(facts: Facts) -> Finding:
    """Does IPv6 work, if this machine has it?"""
    if not facts.ipv6:
        return Finding("NET-IPV6-NONE", INFO, "This machine has no address of IPv6 that is good on the internet.")
    if facts.ipv6_answers is None:
        return Finding("NET-IPV6-UNTRIED", INFO, f"IPv6 is there ({facts.ipv6[0]}), but no peer that has it was met.")
    if facts.ipv6_answers:
        return Finding("NET-IPV6-OK", OK, f"Peers answer by IPv6; this machine is {facts.ipv6[0]}.")
    words = f"This machine has an address of IPv6 ({facts.ipv6[0]}), but nobody answers by it."
    return Finding("NET-IPV6-SILENT", WARN, words, "have IPv6 mended or turned off; Shoal does without it meanwhile")


def _clock(facts: Facts) -> Finding:
    """Is this machine's clock right?"""
    ahead = facts.ahead
    if ahead is None:
        return Finding("NET-CLOCK-UNKNOWN", INFO, "No peer has said what its clock shows.")
    asked = f"{len(facts.clocks)} peer{'s' * (len(facts.clocks) > 1)}"
    if abs(ahead) <= CLOCK_WARN:
        return Finding("NET-CLOCK-OK", OK, f"This machine's clock is within {CLOCK_WARN:g} s of the others' ({asked}).")
    words = f"This machine's clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the others' ({asked})."
    return Finding("NET-CLOCK-OFF", BAD if abs(ahead) > CLOCK_BAD else WARN, words, "set the clock, best by NTP")


def _packets(facts: Facts) -> Finding:
    """Do packets of full size come through?"""
    if not facts.large_packets:
        words = "that takes a peer that this node has dialled directly, and no connected one is"
        return Finding("NET-MTU-UNTRIED", INFO, f"Large packets were not tried: {words}.")
    if all(facts.large_packets):
        return Finding("NET-MTU-OK", OK, "Large packets come through.")
    everywhere = not any(facts.large_packets)
    where = "on all ways that were tried" if everywhere else "on some ways"
    words = f"Packets of full size get lost {where}, and nobody says so; short ones come through."
    action = "lower the MTU of this machine's interface, to 1280 say, or have its router send ICMP"
    is_sure = everywhere and len(facts.large_packets) >= ENOUGH  # the path to a single peer may be at fault
    return Finding("NET-MTU-LOST", BAD if is_sure else WARN, words, action)


def _limits(facts: Facts) -> Finding | None:
    """Has this node's owner limited its rates?"""
    if not facts.limits:
        return None
    return Finding("NET-LIMITS", INFO, f"This node's owner lets no more pass than {facts.limits}.")


CHECKS: tuple[Callable[[Facts], Finding | None], ...] = (
    _dial,
    _nat,
    _carrier,
    _portmap,
    _relays,
    _ipv6,
    _clock,
    _packets,
    _limits,
)
