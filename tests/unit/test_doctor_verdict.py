"""The verdict of an examination: a code, a side, a sentence; and which peer a person means by a short name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.dht.link import format_link
from shoal.node.daemon.diagnostics.peer_checks import of_connection, of_failure
from shoal.node.daemon.diagnostics.peer_lookup import PeerQuery, parse_query
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import PeerId, RunId, short
from shoal.protocol.messages.doctor import Seen
from shoal.protocol.net.measure.journal import Step, Way
from shoal.protocol.net.measure.link import ConnectionInfo, LinkReport
from shoal.protocol.net.measure.rates import Gauge
from shoal.protocol.net.system.identity import Identity

BOB, EVE = (Identity.generate().peer for _ in range(2))
RELAY = Identity.generate().peer
DOOR, AT_HOME = "/ip4/203.0.113.7/tcp/4101", "/ip4/192.168.1.7/tcp/4101"
BY_RELAY = ConnectionInfo((f"/ip4/198.51.100.1/tcp/4101/p2p/{RELAY}/p2p-circuit",), True)
SEEN = Seen((), "relayed", "relay", 0, "nat", "keeping", 2, ())


def link_report(path: str, *codes: str) -> LinkReport:
    line = BY_RELAY if path == "relayed" else ConnectionInfo((DOOR,), True)
    return LinkReport(BOB, path, (line,), tuple(Step(1, Way.MEET, RELAY, code) for code in codes), Gauge())


CONNECTED = [
    ("direct", (), "unknown", SEEN, "direct", "nobody"),
    ("punched", ("ok",), "keeping", SEEN, "punched", "nobody"),
    ("relayed", (), "keeping", SEEN, "relayed-untried", "nobody"),
    ("relayed", ("silent",), "keeping", SEEN, "relayed-failed", "network"),
    ("relayed", ("no-place-there",), "symmetric", SEEN, "relayed-symmetric-here", "ours"),  # it knows better by now
    ("relayed", ("no-place-there",), "keeping", None, "relayed-symmetric-there", "theirs"),
    ("relayed", (), "keeping", replace(SEEN, nat="symmetric"), "relayed-symmetric-there", "theirs"),
    ("relayed", ("no-place-yet",), "unknown", SEEN, "relayed-early", "nobody"),
    ("relayed", ("no-place-both",), "unknown", None, "relayed-symmetric-both", "both"),
]


@pytest.mark.parametrize(("path", "codes", "nat", "seen", "code", "side"), CONNECTED)
def test_of_connections(path: str, codes: tuple[str, ...], nat: str, seen: Seen | None, code: str, side: str) -> None:
    verdict = of_connection(link_report(path, *codes), 0.0, nat, seen, "5101 and 5102")
    assert (verdict.code, verdict.side) == (code, side)
    assert short(RELAY) in verdict.sentence or path != "relayed"
    assert ("5101 and 5102 to this machine" in verdict.advice) is (side == "ours")


def step(code: str, way: Way = Way.DIAL, where: str = DOOR) -> Step:
    return Step(1, way, where, code, "the words")


FAILED = [
    ((), "no-address", "ours", "nobody has told this node where"),
    ((step("refused"),), "refused", "theirs", "nothing listens on that port"),
    ((step("silent"), step("refused")), "refused", "theirs", "is there, and nothing listens"),
    ((step("silent"),), "silent", "theirs", f"nothing answers at {DOOR}"),
    ((step("silent", where=AT_HOME),), "silent", "network", AT_HOME),
    ((step("unreachable"),), "unreachable", "ours", "no way to"),
    ((step("unresolved"),), "unresolved", "ours", "the words"),
    ((step("reset"),), "reset", "theirs", "cuts them off"),
    ((step("failed", Way.RELAY),), "failed", "network", "the words"),
    ((step("overtaken"), step("too-often")), "too-often", "network", "the words"),
    ((step("refused", where=AT_HOME), step("silent")), "silent", "theirs", f"nothing answers at {DOOR}"),
    ((step("silent", where=AT_HOME), step("refused", where=AT_HOME)), "refused", "theirs", AT_HOME),
    ((step("no-such-code"),), "failed", "network", "the words"),
    ((step("itself"),), "itself", "ours", "this node itself"),
    ((step("other-identity"), step("other-identity", Way.NAME)), "other-identity", "theirs", "another node"),
]


@pytest.mark.parametrize(("steps", "code", "side", "words"), FAILED)
def test_of_failures(steps: tuple[Step, ...], code: str, side: str, words: str) -> None:
    verdict = of_failure("bob", steps, is_alone=False)
    assert (verdict.code, verdict.side) == (code, side)
    assert words in verdict.sentence
    assert verdict.advice


def test_who_reaches_nobody_looks_at_home_first() -> None:
    assert of_failure("bob", [step("silent")], is_alone=True).side == "ours"
    assert of_failure("bob", [step("refused")], is_alone=True).side == "theirs", "somebody did answer"


def test_who_is_meant() -> None:
    known = [BOB, EVE, BOB]
    assert parse_query(BOB, []) == PeerQuery(BOB)
    assert parse_query(f" {BOB[-6:]} ", known) == PeerQuery(BOB)
    assert parse_query(DOOR, known) == PeerQuery(None, DOOR)
    assert parse_query(f"{DOOR}/p2p/{EVE}", []) == PeerQuery(EVE, DOOR)
    circuit = BY_RELAY.leads_to[0]
    assert parse_query(f"{circuit}/p2p/{EVE}", []) == PeerQuery(EVE, circuit)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("nonsense", "no peer 'nonsense' is known here: it is a PeerID"),
        ("12D3Koo", "means several peers"),
        ("", "no peer '' is known"),
        (BOB[-3:], "no peer"),
        ("/ip4/203.0.113.7", "is no address"),
        (f"{DOOR}/p2p/bob", "is no address"),
        (format_link(RunId(bytes(32)), [DOOR]), f"`shoal doctor {DOOR}`"),
        (format_link(RunId(bytes(32)), []), "a PeerID or an address"),
        ("shoal2aaaa", "is cut off"),
    ],
    ids=[
        "nonsense",
        "several",
        "nothing",
        "too short",
        "half an address",
        "no PeerID",
        "link",
        "bare link",
        "half a link",
    ],
)
def test_who_is_not(asked: str, words: str) -> None:
    with pytest.raises(LocalError) as error:
        parse_query(asked, [BOB, EVE])
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_names_are_told_apart_by_their_ends() -> None:
    twin = PeerId(BOB[:10] + "x" * 20 + BOB[-6:])
    with pytest.raises(LocalError, match="several"):
        parse_query(BOB[-6:], [BOB, twin])
