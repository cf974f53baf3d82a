"""The bandwidth probe of a newcomer: one, to a member over the internet, and none if something is known."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from shoal.node.peers.bandwidth_probe import far, find_line, find_uplink
from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.data import Later
from shoal.protocol.messages.doctor import Carried, Carry
from shoal.protocol.net.measure.bandwidth_probe import MOST
from shoal.protocol.net.measure.link import Link
from shoal.protocol.net.measure.rates import Bandwidth
from tests.unit.rounds_kit import A, B, C, D

PUBLIC, HOME = "/ip4/192.0.2.7/tcp/4101", "/ip4/192.168.1.7/tcp/4101"
TRIP = 0.002  # seconds


def link(peer: PeerId, path: str = "direct", address: str = PUBLIC) -> Link:
    return Link(peer, path, None, 0, 0, (address,))


@dataclass
class Wire:
    """A network whose peers take what they are sent."""

    there: list[Link]
    refusing: tuple[PeerId, ...] = ()
    silent: tuple[PeerId, ...] = ()
    bandwidth: Bandwidth = field(default_factory=Bandwidth)
    sent: dict[PeerId, int] = field(default_factory=dict)
    asked: dict[PeerId, int] = field(default_factory=dict)  # bytes that were wanted
    trip: float = TRIP

    def links(self) -> list[Link]:
        return self.there

    async def call(self, peer: PeerId, message: Message, timeout: float) -> Message:
        assert isinstance(message, Carry)
        self.sent[peer] = self.sent.get(peer, 0) + len(message.content)
        self.asked[peer] = self.asked.get(peer, 0) + message.wanted
        await asyncio.sleep(self.trip)
        if peer in self.silent:
            raise TransportError("silent")
        return Later(1) if peer in self.refusing else Carried(bytes(message.wanted))


async def run(wire: Wire, members: list[PeerId]) -> None:
    async with asyncio.timeout(20):
        await find_uplink(wire, lambda: members)  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_one_member_is_asked_once_and_the_uplink_is_known() -> None:
    wire = Wire([link(A, address=HOME), link(B, "relayed"), link(C), link(D)])
    await run(wire, [A, B, C, D])
    assert list(wire.sent) == [C]
    assert 0 < wire.sent[C] <= MOST
    up, down = wire.bandwidth.claim()
    assert up > 0
    assert down == 0


@pytest.mark.asyncio
async def test_who_refuses_or_is_silent_is_passed_over() -> None:
    wire = Wire([link(A), link(B), link(C)], refusing=(A,), silent=(B,))
    await run(wire, [A, B, C])
    assert list(wire.sent) == [A, B, C]
    assert wire.bandwidth.claim()[0] > 0


@pytest.mark.asyncio
async def test_who_knows_its_line_sends_nothing() -> None:
    wire = Wire([link(A)])
    wire.bandwidth.far.down.suppose(1e6)
    await run(wire, [A])
    assert wire.sent == {}


@pytest.mark.asyncio
async def test_while_nobody_is_there_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.node.peers.bandwidth_probe.RETRY", 0.001)
    wire, members = Wire([]), [A]
    probing = asyncio.create_task(run(wire, members))
    await asyncio.sleep(0.01)
    assert wire.sent == {}
    wire.there = [link(A)]
    await probing
    assert list(wire.sent) == [A]


@pytest.mark.asyncio
async def test_who_is_about_to_join_measures_both_ways_with_whoever_introduces_it() -> None:
    wire = Wire([link(A, address=HOME), link(B), link(C)])
    await find_line(wire, [A, B, C])  # type: ignore[arg-type]
    assert (list(wire.sent), list(wire.asked)) == ([B], [B])
    assert all(wire.bandwidth.claim())
    await run(wire, [B])
    assert wire.sent[B] <= MOST, "so it is not measured again once it is a member"


@pytest.mark.asyncio
async def test_only_what_is_not_known_is_measured() -> None:
    wire = Wire([link(A)])
    wire.bandwidth.far.up.suppose(1e6)
    await find_line(wire, [A])  # type: ignore[arg-type]
    assert (wire.sent[A], wire.asked[A] > 0) == (0, True)
    assert wire.bandwidth.far.up.rate == 1e6
    assert wire.bandwidth.far.down.rate > 0
    wire.asked.clear()
    await find_line(wire, [A])  # type: ignore[arg-type]
    assert wire.asked == {}


@pytest.mark.asyncio
@pytest.mark.parametrize("wire", [Wire([link(A)], refusing=(A,)), Wire([link(A)], silent=(A,)), Wire([])])
async def test_where_nothing_can_be_measured_nothing_is_said(wire: Wire) -> None:
    await find_line(wire, [A])  # type: ignore[arg-type]
    assert not any(wire.bandwidth.claim())


@pytest.mark.asyncio
async def test_nobody_waits_long_for_whoever_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.node.peers.bandwidth_probe.PROBING", 0.05)
    async with asyncio.timeout(5):
        await find_line(Wire([link(A)], trip=60.0), [A])  # type: ignore[arg-type]


def test_those_nearby_and_behind_relays_and_strangers_show_nothing_of_the_line() -> None:
    wire = Wire([link(A, address=HOME), link(B, "relayed"), link(C, "punched"), link(D)])
    assert far(wire, [A, B, C]) == [C]  # type: ignore[arg-type]


def test_what_passes_is_believed_more_than_a_probe() -> None:
    bandwidth = Bandwidth()
    bandwidth.far.up.suppose(1e6)
    bandwidth.far.up.suppose(9e6)
    assert bandwidth.claim() == (1_000_000, 0)
    for second in range(20):
        bandwidth.far.up.moved(second, second + 1, 5_000_000)
    assert bandwidth.claim()[0] == pytest.approx(5e6, rel=0.01)
