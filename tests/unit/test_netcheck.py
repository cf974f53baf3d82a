"""The findings of netcheck: codes, levels, advice and exit code; and how they are shown."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.node.api.answers import PortMapping
from shoal.node.base.exits import Exit
from shoal.node.client.cli.diagnosis_lines import show_netcheck
from shoal.node.daemon.diagnostics.node_checks import (
    LEVELS,
    Facts,
    Finding,
    exit_code,
    findings,
    nat_kind,
    report,
    verdict,
)
from shoal.protocol.base.ids import PeerId

OWN, HOME = "/ip4/203.0.113.9/tcp/4101", "/ip4/192.168.1.7/tcp/4101"
OUTSIDE, ELSEWHERE = "/ip4/198.51.100.2/tcp/4101", "/ip4/198.51.100.2/tcp/31000"
RELAYS = ((PeerId("12D3KooWrelayAAAAAA"), 48.0), (PeerId("12D3KooWrelayBBBBBB"), None))
MET = Facts(port=4101, peers=3, internet_peers=3)
PUBLIC = dataclasses.replace(MET, own=(OWN,), found_at=(OWN,), reachability="public", lends=True)
FORWARDED = dataclasses.replace(MET, own=(HOME,), found_at=(OUTSIDE,), reachability="public", lends=True)
HIDDEN = dataclasses.replace(MET, own=(HOME,), reachability="nat", relays=RELAYS)
FIREWALL = dataclasses.replace(HIDDEN, own=(OWN,), seen_places=(OWN,), mapping="public")
KEEPING = dataclasses.replace(HIDDEN, seen_places=(OUTSIDE,), mapping="keeping")
SYMMETRIC = dataclasses.replace(HIDDEN, seen_places=(OUTSIDE, ELSEWHERE), mapping="symmetric")
CARRIER = dataclasses.replace(KEEPING, own=("/ip4/100.64.0.7/tcp/4101",))
SHUT_OFF = dataclasses.replace(KEEPING, relays=())
WANTING = dataclasses.replace(SHUT_OFF, pending=("relays",))
LOCAL = dataclasses.replace(MET, internet_peers=0, own=(HOME,), found_at=(HOME,))
UNTRIED = dataclasses.replace(MET, own=(HOME,), pending=("whether others can dial this node",))
SOLO = Facts(port=4101, own=(HOME,), pending=("other peers",))
COMMAND = "shoal run join shoal2xyz"
FOUNDER = dataclasses.replace(SOLO, is_in_runs=True, lonely=(("stdlib", COMMAND),))

NO_MAPPING: PortMapping = {
    "protocol": None,
    "external": None,
    "error": None,
    "behind_another_nat": None,
    "pending": False,
}
MAPPED: PortMapping = {
    "protocol": "upnp",
    "external": "198.51.100.2:4101",
    "error": None,
    "behind_another_nat": False,
    "pending": False,
}
INSIDE: PortMapping = {**MAPPED, "behind_another_nat": True}
TWO_ROUTERS: PortMapping = {
    **INSIDE,
    "external": "192.168.0.4:4101",
    "error": "the router's outside is a private address",
}
CGNAT: PortMapping = {**INSIDE, "external": "100.64.0.9:4101", "error": "the carrier translates addresses (CGNAT)"}

ALL = {
    "public": (PUBLIC, "public", ["NET-DIAL-OK", "NET-NAT-NONE", "NET-RELAY-LENT"], Exit.OK),
    "forwarded": (FORWARDED, "forwarded", ["NET-DIAL-OK", "NET-NAT-FORWARDED", "NET-RELAY-LENT"], Exit.OK),
    "firewall": (FIREWALL, "firewall", ["NET-DIAL-NO", "NET-NAT-FIREWALL", "NET-RELAY-OK"], Exit.OK),
    "keeping": (KEEPING, "keeping", ["NET-DIAL-NO", "NET-NAT-KEEPING", "NET-RELAY-OK"], Exit.OK),
    "symmetric": (SYMMETRIC, "symmetric", ["NET-DIAL-NO", "NET-NAT-SYMMETRIC", "NET-RELAY-OK"], Exit.OK),
    "one relay": (HIDDEN, "unknown", ["NET-DIAL-NO", "NET-NAT-UNKNOWN", "NET-RELAY-OK"], Exit.OK),
    "carrier": (CARRIER, "keeping", ["NET-DIAL-NO", "NET-NAT-KEEPING", "NET-NAT-CARRIER", "NET-RELAY-OK"], Exit.OK),
    "shut off": (SHUT_OFF, "keeping", ["NET-DIAL-NO", "NET-NAT-KEEPING", "NET-RELAY-NONE"], Exit.HIDDEN),
    "relays wanted": (WANTING, "keeping", ["NET-DIAL-NO", "NET-NAT-KEEPING", "NET-RELAY-NONE"], Exit.UNKNOWN),
    "local": (LOCAL, "local", ["NET-DIAL-LOCAL", "NET-NAT-LOCAL", "NET-RELAY-UNNEEDED"], Exit.OK),
    "untried": (UNTRIED, "unknown", ["NET-DIAL-UNKNOWN", "NET-NAT-UNKNOWN", "NET-RELAY-UNNEEDED"], Exit.UNKNOWN),
    "solo": (SOLO, "unknown", ["NET-SOLO"], Exit.ALONE),
}
BESIDE = ("NET-PORTMAP", "NET-IPV6", "NET-CLOCK", "NET-MTU")


@pytest.mark.parametrize("name", ALL)
def test_where_a_node_stands(name: str) -> None:
    facts, kind, codes, code = ALL[name]
    found = list(findings(facts))
    assert nat_kind(facts) == kind
    assert [each.code for each in found if not each.code.startswith(BESIDE)] == codes
    assert exit_code(facts, found) == code
    assert {each.level for each in found} <= set(LEVELS)
    assert all(each.sentence.endswith(".") and not each.action.endswith(".") for each in found)


@pytest.mark.parametrize(
    ("facts", "action"),
    [
        (PUBLIC, ""),
        (FORWARDED, ""),
        (LOCAL, ""),
        (KEEPING, "forward TCP 4101 and 4102 to this machine (192.168.1.7)"),
        (SYMMETRIC, "forward TCP 4101 and 4102 to this machine (192.168.1.7)"),
        (dataclasses.replace(KEEPING, port=4201), "forward TCP 4201 and 4202"),
        (FIREWALL, "allow incoming TCP 4101 and 4102"),
        (CARRIER, "ask the provider for a public address"),
        (dataclasses.replace(KEEPING, portmap=TWO_ROUTERS), "put the inner router into bridge mode"),
        (dataclasses.replace(KEEPING, portmap=CGNAT), "ask the provider for a public address"),
        (dataclasses.replace(KEEPING, own=(HOME, "/ip4/100.101.102.103/tcp/4101")), "forward TCP 4101"),  # a tunnel's
        (dataclasses.replace(HIDDEN, own=(OWN,)), "allow incoming TCP 4101 and 4102"),  # as far as one relay knows
        (UNTRIED, "run `shoal netcheck` again"),
        (SOLO, "start it with --bootstrap"),
        (FOUNDER, f"send this to whoever is to join: {COMMAND}"),
        (
            dataclasses.replace(FOUNDER, sought=("b",)),
            f"send this to whoever is to join stdlib: {COMMAND}; check that the others of b are up",
        ),
        (dataclasses.replace(FOUNDER, lonely=()), "check that the others of its runs are up"),
    ],
)
def test_the_verdict_says_what_to_do(facts: Facts, action: str) -> None:
    sentence, said = verdict(facts)
    assert sentence.endswith(".")
    assert said.startswith(action)
    assert bool(said) == bool(action)


def test_only_a_node_in_no_run_is_told_to_start_with_an_address() -> None:
    for facts in (SOLO, SHUT_OFF):
        assert any("--bootstrap" in each.action for each in findings(facts))
        within = dataclasses.replace(facts, is_in_runs=True)
        assert not any("--bootstrap" in each.action for each in findings(within))


GLOBAL = "/ip6/2001:db8::9/tcp/4101"


@pytest.mark.parametrize(
    ("changes", "code", "level"),
    [
        ({}, "NET-IPV6-NONE", "info"),
        ({"own": (HOME, "/ip6/fd00::9/tcp/4101")}, "NET-IPV6-NONE", "info"),  # good at home only
        ({"own": (HOME, GLOBAL)}, "NET-IPV6-UNTRIED", "info"),
        ({"own": (HOME, GLOBAL), "ipv6_answers": True}, "NET-IPV6-OK", "ok"),
        ({"own": (HOME, GLOBAL), "ipv6_answers": False}, "NET-IPV6-SILENT", "warn"),
        ({}, "NET-CLOCK-UNKNOWN", "info"),
        ({"clocks": (0.2,)}, "NET-CLOCK-OK", "ok"),
        ({"clocks": (0.1, -0.2, 86_400.0)}, "NET-CLOCK-OK", "ok"),  # one liar moves nothing
        ({"clocks": (-0.5, 1.1)}, "NET-CLOCK-OK", "ok"),
        ({"clocks": (-2.5, -2.4, -2.6)}, "NET-CLOCK-OFF", "warn"),
        ({"clocks": (300.0, 301.0)}, "NET-CLOCK-OFF", "bad"),
        ({}, "NET-MTU-UNTRIED", "info"),
        ({"large_packets": (True, True)}, "NET-MTU-OK", "ok"),
        ({"large_packets": (True, False)}, "NET-MTU-LOST", "warn"),
        ({"large_packets": (False,)}, "NET-MTU-LOST", "warn"),  # it may be the peer's fault
        ({"large_packets": (False, False)}, "NET-MTU-LOST", "bad"),
        ({}, "NET-PORTMAP-UNTRIED", "info"),
        ({"portmap": {**NO_MAPPING, "pending": True}}, "NET-PORTMAP-UNTRIED", "info"),
        ({"portmap": MAPPED}, "NET-PORTMAP-OK", "ok"),
        ({"portmap": {**NO_MAPPING, "error": "no gateway answers"}}, "NET-PORTMAP-NONE", "info"),
        ({"portmap": INSIDE}, "NET-PORTMAP-INSIDE", "warn"),
    ],
)
def test_what_else_is_found(changes: dict[str, object], code: str, level: str) -> None:
    facts = dataclasses.replace(KEEPING, **changes)  # type: ignore[arg-type]
    family = code.rpartition("-")[0]
    [found] = [each for each in findings(facts) if each.code.startswith(family) and "CARRIER" not in each.code]
    assert (found.code, found.level) == (code, level)
    assert exit_code(facts, [found]) == (Exit.NETWORK_TROUBLE if level == "bad" else Exit.OK)


def test_it_is_said_why_large_packets_were_not_tried() -> None:
    [said] = [each.sentence for each in findings(KEEPING) if each.code == "NET-MTU-UNTRIED"]
    assert said.endswith("not tried: that takes a peer that this node has dialled directly, and no connected one is.")


def test_a_forwarded_node_is_told_from_a_public_one_by_ipv4_of_the_internet() -> None:
    at_home = dataclasses.replace(FORWARDED, own=(HOME, GLOBAL), found_at=(HOME, GLOBAL, OUTSIDE))
    assert nat_kind(at_home) == "forwarded"
    assert nat_kind(dataclasses.replace(PUBLIC, own=(OWN, GLOBAL), found_at=(GLOBAL, OWN))) == "public"


def test_the_router_s_own_words_say_what_is_beyond_it() -> None:
    [beyond] = [each for each in findings(dataclasses.replace(KEEPING, portmap=CGNAT)) if "CARRIER" in each.code]
    assert beyond.sentence == "The carrier translates addresses (CGNAT)."


def test_nobody_is_said_to_get_through_where_somebody_has() -> None:
    for relays in ((), RELAYS):
        facts = dataclasses.replace(FIREWALL, came=1, relays=relays)
        said = [verdict(facts)[0], *(each.sentence for each in findings(facts) if each.code == "NET-DIAL-NO")]
        assert all("1 peer has" in each and "Nobody" not in each for each in said), said


@pytest.mark.parametrize(
    ("found_at", "came", "who"),
    [
        ((), 1, "1 peer has dialled this node"),
        ((HOME,), 0, f"Others have dialled this node at {HOME}"),
        ((HOME,), 2, f"Others have dialled this node at {HOME}"),
        ((GLOBAL, HOME), 0, f"Others have dialled this node at {GLOBAL}, {HOME}"),
    ],
)
def test_while_the_internet_has_not_answered_who_has_dialled_is_not_denied(
    found_at: tuple[str, ...], came: int, who: str
) -> None:
    facts = dataclasses.replace(UNTRIED, found_at=found_at, came=came)
    [dial] = [each for each in findings(facts) if each.code == "NET-DIAL-UNKNOWN"]
    for said, action in (verdict(facts), (dial.sentence, dial.action)):
        assert said == f"{who}; whether most of the internet can, nobody has said yet."
        assert action.startswith("run `shoal netcheck` again")


def test_nobody_has_said_is_not_nobody_has_tried() -> None:
    """Who is near may have dialled this node, and still be connected."""
    [dial] = [each for each in findings(UNTRIED) if each.code == "NET-DIAL-UNKNOWN"]
    assert verdict(UNTRIED)[0] == dial.sentence == "Nobody has said yet whether others can dial this node."


@pytest.mark.parametrize(
    ("found_at", "who"),
    [
        ((HOME,), "those nearby"),
        ((GLOBAL,), "those who use IPv6"),
        ((GLOBAL, HOME), "those nearby and those who use IPv6"),
    ],
)
@pytest.mark.parametrize("facts", [HIDDEN, FIREWALL, KEEPING, SYMMETRIC, SHUT_OFF])
def test_who_gets_through_is_not_denied_by_what_is_said_of_the_others(
    facts: Facts, found_at: tuple[str, ...], who: str
) -> None:
    facts = dataclasses.replace(facts, own=(*facts.own, HOME, GLOBAL), found_at=found_at)
    assert f" but {who} " in verdict(facts)[0]
    [dial] = [each.sentence for each in findings(facts) if each.code == "NET-DIAL-NO"]
    assert dial.startswith(f"Others have dialled this node at {', '.join(found_at)}, but")


def test_the_owner_s_limits_are_said_where_there_are_any() -> None:
    [said] = [each for each in findings(dataclasses.replace(KEEPING, limits="20 Mbit/s up")) if "LIMITS" in each.code]
    assert said.sentence == "This node's owner lets no more pass than 20 Mbit/s up."
    assert not [each for each in findings(KEEPING) if "LIMITS" in each.code]


def test_a_clock_that_is_off_says_by_how_much_and_which_way() -> None:
    facts = dataclasses.replace(PUBLIC, clocks=(-2.5,))
    [off] = [each for each in findings(facts) if each.code == "NET-CLOCK-OFF"]
    assert off == Finding(
        "NET-CLOCK-OFF",
        "warn",
        "This machine's clock is 2.5 s behind the others' (1 peer).",
        "set the clock, best by NTP",
    )


def test_the_report_of_a_node_is_plain_data() -> None:
    answer = report(dataclasses.replace(SYMMETRIC, pending=("clocks",)))
    assert answer["settled"] is False
    assert answer["self"] == {"dialable": False, "mapping": "symmetric", "has_relay": True}
    assert answer["forecast"] == dict.fromkeys(("firewalled", "keeping", "symmetric"), "relayed") | {"public": "direct"}
    assert answer["relays"][0] == {"peer": RELAYS[0][0], "rtt_ms": 48.0}
    assert answer["verdict"]["exit_code"] == 0


def test_it_is_shown_with_the_verdict_first(capsys: pytest.CaptureFixture[str]) -> None:
    show_netcheck(report(dataclasses.replace(KEEPING, pending=("clocks", "IPv6"), clocks=(9.0,))))
    first, second, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("Others cannot dial this node, but it meets most of them directly")
    assert second.startswith("What to do: forward TCP 4101 and 4102 to this machine (192.168.1.7)")
    assert "seen by others  /ip4/198.51.100.2/tcp/4101" in rest
    assert "warn  NET-CLOCK-OFF" in rest
    assert "      -> set the clock, best by NTP" in rest
    assert sum("forward TCP" in line for line in rest) == 0, "said once is enough"
    assert rest[-1] == "Not known yet: clocks, IPv6."


def test_nothing_is_coloured_for_who_wants_no_colours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.node.api.present.is_terminal", lambda: True)
    for wanted in (True, False):
        monkeypatch.setenv("NO_COLOR", "" if wanted else "1")
        show_netcheck(report(SHUT_OFF))
        assert ("\x1b[1;31mbad " in capsys.readouterr().out) is wanted


def test_a_long_finding_is_folded(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    show_netcheck(
        report(dataclasses.replace(KEEPING, portmap={**NO_MAPPING, "error": "the router " + "says no, " * 20}))
    )
    lines = capsys.readouterr().out.splitlines()
    first = lines.index("info  NET-PORTMAP-NONE") + 1
    assert all(line.startswith("      ") and len(line) <= 80 for line in lines[first : first + 3])


def test_what_a_peer_says_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show_netcheck(report(dataclasses.replace(KEEPING, portmap={**NO_MAPPING, "error": "no\x1b[2J way"})))
    assert "\x1b" not in capsys.readouterr().out
