"""Incoming frames: cut anywhere, slow or in time, and paused while their reader rests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.protocol.base.errors import RemoteError, TransportError
from shoal.protocol.base.frames import MAX_HEAD, Frame, Kind, decode_frame, frame_head
from shoal.protocol.base.ids import PeerId
from shoal.protocol.net.transport import streams
from shoal.protocol.net.transport.streams import AHEAD, FrameReader

LIMIT = 1000


def framed(body: bytes) -> bytes:
    return frame_head(Kind.MESSAGE, 0, None, len(body)) + body


class Receiver:
    """Takes all that a stream brings."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.bodies: list[bytes] = []
        self.complaints: list[RemoteError] = []
        self.allowed, self.was_reset, self.rest = 0, 0, 0.0
        stream: Any = self
        self.came: list[tuple[int, float]] = []
        note = lambda begin, end, size: self.came.append((size, end - begin))  # noqa: E731
        self.incoming = FrameReader(
            stream, limit + MAX_HEAD, PeerId("peer"), decode_frame, self.take, self.complaints.append, note
        )

    def take(self, frame: Frame, size: int) -> float:
        assert size == len(framed(bytes(frame.body)))
        self.bodies.append(bytes(frame.body))
        return self.rest

    # -- as a stream

    is_relayed = False

    def listen(self, feed: Callable[[bytes], None], ended: Callable[[BaseException], None]) -> None:
        self.feed, self.ended = feed, ended

    def allow(self, upto: int) -> None:
        self.allowed = upto

    def reset(self) -> None:
        self.was_reset += 1


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(0, 300), max_size=8))
def test_frames_come_whole_and_in_order_however_they_are_cut(bodies: list[bytes], cuts: list[int]) -> None:
    async def test() -> None:
        receiver, data = Receiver(), b"".join(map(framed, bodies))
        places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
        for begin, end in pairwise(places):
            receiver.feed(data[begin:end])
        assert receiver.bodies == bodies
        assert receiver.allowed == len(data) + 4 + AHEAD
        receiver.incoming.close()

    asyncio.run(test())


@pytest.fixture(autouse=True, scope="module")
def in_one_turn() -> Iterator[None]:
    """However slow the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "TURN", 3600.0)
        yield


@pytest.mark.asyncio
async def test_many_frames_at_once_let_others_have_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "TURN", -1.0)
    receiver = Receiver()
    receiver.feed(b"".join(framed(bytes([number])) for number in range(4)))
    assert len(receiver.bodies) == 1
    for count in (2, 3, 4):
        await asyncio.sleep(0)
        assert len(receiver.bodies) == count


@pytest.mark.asyncio
async def test_how_fast_a_frame_comes_is_measured_from_its_first_piece_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(streams, "time", clock)
    receiver, data = Receiver(10_000), framed(bytes(4000))
    for seconds, piece in ((0.0, data[:1000]), (0.5, data[1000:3000]), (1.5, data[3000:] + data[:500])):
        clock.now += seconds
        receiver.feed(piece)
    assert receiver.came == [(len(data) - 1000, 2.0)]
    clock.now += 1.0
    receiver.feed(data[500:])
    assert receiver.came[1:] == [(len(data) - 500, 1.0)], "what came with the end of the one before counts for nothing"
    clock.now += 9.0
    receiver.feed(framed(b"whole"))
    assert len(receiver.came) == 2, "a frame in one piece says nothing, and neither does the pause before it"


@pytest.mark.asyncio
async def test_while_nothing_is_taken_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver, old = Receiver(10_000), Receiver()
    receiver.incoming.follow(old.incoming)
    clock = SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(streams, "time", clock)
    data = framed(bytes(4000))
    receiver.feed(data[:1000])
    clock.now += 7.0
    receiver.feed(data[1000:] + data + data[:500])
    clock.now += 7.0
    old.incoming.close()
    assert (len(receiver.bodies), receiver.came) == (2, []), "who knows how fast that came"
    clock.now += 2.0
    receiver.feed(data[500:])
    assert receiver.came == [(len(data) - 500, 2.0)]


@pytest.mark.asyncio
async def test_a_long_frame_is_let_come_and_one_that_is_too_long_is_not() -> None:
    receiver = Receiver(10 * AHEAD)
    data = framed(bytes(5 * AHEAD))
    receiver.feed(data[:100])
    assert receiver.allowed == len(data) + AHEAD
    receiver.feed(data[100:])
    assert len(receiver.bodies) == 1
    receiver.feed((11 * AHEAD).to_bytes(4, "big"))
    assert "over the limit" in str(receiver.complaints[0])
    assert receiver.was_reset == 1
    assert receiver.incoming.is_over


@pytest.mark.asyncio
async def test_while_it_rests_nothing_is_taken_or_let_come_and_then_all_that_came() -> None:
    receiver = Receiver()
    receiver.rest = 0.01
    data = [framed(bytes([number])) for number in range(3)]
    receiver.feed(b"".join(data))
    assert receiver.bodies == [b"\0"]
    assert receiver.allowed == AHEAD
    receiver.ended(TransportError("the stream has ended"))
    assert not receiver.incoming.is_over, "what came before the end is still taken"
    await until(lambda: receiver.incoming.is_over)
    assert receiver.bodies == [b"\0", b"\1", b"\2"]
    assert receiver.was_reset == 1
    assert not receiver.complaints


@pytest.mark.asyncio
async def test_half_a_frame_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "FRAME_LIMIT", 0.02)
    receiver = Receiver()
    receiver.feed(framed(b"in time")[:9])
    receiver.feed(framed(b"in time")[9:])
    receiver.feed(framed(b"never")[:9])
    await until(lambda: receiver.incoming.is_over)
    assert receiver.bodies == [b"in time"]
    assert "for one frame" in str(receiver.complaints[0])


@pytest.mark.asyncio
async def test_once_closed_it_hears_nothing() -> None:
    receiver = Receiver()
    receiver.feed(framed(b"first") + framed(b"second")[:9])
    receiver.incoming.close()
    receiver.feed(framed(b"second")[9:])
    receiver.ended(TransportError("the connection is lost"))
    assert receiver.bodies == [b"first"]
    assert not receiver.complaints
    assert receiver.was_reset == 1


@pytest.mark.asyncio
async def test_what_follows_a_stream_waits_for_its_end() -> None:
    old, new = Receiver(), Receiver()
    new.incoming.follow(old.incoming)
    new.feed(framed(b"3"))
    old.feed(framed(b"1"))
    old.feed(framed(b"2"))
    assert (old.bodies, new.bodies) == ([b"1", b"2"], [])
    old.ended(TransportError("it has ended"))
    assert new.bodies == [b"3"]
    new.feed(framed(b"4"))
    assert new.bodies == [b"3", b"4"]


@pytest.mark.asyncio
async def test_it_does_not_wait_for_an_end_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "FOLLOW_LIMIT", 0.05)
    old, new = Receiver(), Receiver()
    new.incoming.follow(old.incoming)
    new.feed(framed(b"2"))
    assert not new.bodies
    await until(lambda: new.bodies == [b"2"])
    new.rest = 3600.0
    new.feed(framed(b"3"))
    new.feed(framed(b"4"))
    old.feed(framed(b"1"))
    old.ended(TransportError("it has ended"))
    assert (old.bodies, new.bodies) == ([b"1"], [b"2", b"3"]), "both are heard, and who must rest goes on resting"
    new.incoming.close()


@pytest.mark.asyncio
async def test_it_waits_longer_while_the_other_brings_something_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A long frame on a slow relay: what follows it would overtake it."""
    monkeypatch.setattr(streams, "FOLLOW_LIMIT", 0.2)
    monkeypatch.setattr(streams, "FOLLOW_MOST", 1.0)
    old, new = Receiver(), Receiver()
    begin = time.monotonic()
    new.incoming.follow(old.incoming)
    new.feed(framed(b"2"))
    old.feed(framed(bytes(LIMIT - 100))[:300])
    while not new.bodies:
        old.feed(b"\0")
        await asyncio.sleep(0.01)
    assert time.monotonic() - begin >= 1.0
    assert old.bodies == []
