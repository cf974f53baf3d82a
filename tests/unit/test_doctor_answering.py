"""What a peer may ask us in an examination: about itself only, seldom, and for a bounded number of bytes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from shoal.node.daemon.diagnostics import answering
from shoal.node.daemon.diagnostics.answering import BYTES, LEAST, QUESTIONS, DoctorResponder
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import decode, encode
from shoal.protocol.messages.data import Later
from shoal.protocol.messages.doctor import Carried, Carry, HowAmISeen, Seen
from shoal.protocol.messages.node import Refused
from shoal.protocol.net.measure.bandwidth_probe import LARGEST, MOST
from shoal.protocol.net.measure.journal import Step, Way
from shoal.protocol.net.measure.link import ConnectionInfo, LinkReport
from shoal.protocol.net.measure.rates import Gauge
from shoal.protocol.net.peers.network import Network

HERE, ROUTER, NEAR = "/ip4/127.0.0.1/tcp/4180", "/ip4/192.168.1.1/tcp/80", "/ip4/192.168.1.7/tcp/4101"
FAR, RELAY = "/ip4/203.0.113.7/tcp/4101", "12D3KooWrelay"
STANDING = {"reachability": "nat", "nat": "keeping", "relays": ["r", "s"]}


def link_report(peer: PeerId) -> LinkReport:
    steps = tuple(Step(5.0, Way.DIAL, where, "refused", "not here", 0.25) for where in (ROUTER, HERE, NEAR, FAR, RELAY))
    leads_to = {"eve": FAR, "near": NEAR, "here": HERE}.get(peer, FAR)
    return LinkReport(peer, "direct", (ConnectionInfo((leads_to,), False),), steps, Gauge(rtt=0.02))


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> DoctorResponder:
    monkeypatch.setattr(answering, "time", SimpleNamespace(monotonic=lambda: 100.0, time=lambda: 10.0))
    return DoctorResponder(cast(Network, SimpleNamespace(link_report=link_report)), lambda: STANDING)


def test_a_peer_hears_of_itself(desk: DoctorResponder) -> None:
    seen = desk.answer(PeerId("eve"), HowAmISeen())
    assert isinstance(seen, Seen)
    assert (seen.addresses, seen.path, seen.reason, seen.trip) == ((FAR,), "direct", "it-dialled", 20_000)
    assert (seen.reachability, seen.nat, seen.relays) == ("nat", "keeping", 2)
    assert {(each.ago, each.code) for each in seen.tried} == {(5000, "refused")}
    assert decode(encode(seen)) == seen


@pytest.mark.parametrize(
    ("name", "told"),
    [("eve", [FAR, RELAY]), ("near", [ROUTER, NEAR, FAR, RELAY]), ("here", [ROUTER, HERE, NEAR, FAR, RELAY])],
)
def test_nobody_learns_what_is_behind_our_router_who_is_not(desk: DoctorResponder, name: str, told: list[str]) -> None:
    seen = desk.answer(PeerId(name), HowAmISeen())
    assert isinstance(seen, Seen)
    assert [each.where for each in seen.tried] == told


def test_questions_are_bounded_for_each_and_for_all(desk: DoctorResponder) -> None:
    most = int(QUESTIONS[0][0])
    answers = [desk.answer(PeerId("eve"), HowAmISeen()) for _ in range(most + 1)]
    assert [isinstance(each, Refused) for each in answers] == [False] * most + [True]
    others = [desk.answer(PeerId(f"{number}"), HowAmISeen()) for number in range(100)]
    assert sum(isinstance(each, Seen) for each in others) == QUESTIONS[1][0] - most


def test_bytes_are_bounded_for_each_and_for_all(desk: DoctorResponder) -> None:
    def carry(name: str) -> int:
        """Send bytes until they are refused."""
        given = 0
        while isinstance(desk.answer(PeerId(name), Carry(bytes(LARGEST), LARGEST)), Carried):
            given += 2 * LARGEST
        return given

    assert 2 * MOST <= carry("eve") <= BYTES[0][0]
    assert isinstance(desk.answer(PeerId("eve"), Carry(b"", LARGEST)), Later)
    assert sum(carry(str(number)) for number in range(20)) <= BYTES[1][0]


def test_a_question_of_no_bytes_counts_for_some(desk: DoctorResponder) -> None:
    asked = 0
    while isinstance(desk.answer(PeerId("eve"), Carry(b"", 0)), Carried):
        asked += 1
    assert asked == BYTES[0][0] // LEAST


def test_nobody_has_us_make_more_than_a_part(desk: DoctorResponder) -> None:
    assert isinstance(desk.answer(PeerId("eve"), Carry(b"", LARGEST + 1)), Refused)
    answer = desk.answer(PeerId("eve"), Carry(b"", 1000))
    assert isinstance(answer, Carried)
    assert len(answer.content) == 1000
