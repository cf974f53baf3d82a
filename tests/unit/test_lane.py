"""A lane: messages in order over the ready stream or the slow way, each reported once, none lost between the two."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from shoal.protocol.base.errors import TransportError
from shoal.protocol.net.transport import streams
from shoal.protocol.net.transport.streams import Lane, QueuedFrame

LIMIT = 100


class Wire:
    """A stream that takes what it is given at once, or, while it is `slow`, when the test says so."""

    def __init__(self, is_relayed: bool) -> None:
        self.is_relayed = is_relayed
        self.data = b""
        self.is_open, self.slow, self.fails, self.is_finished = True, False, False, False
        self.may_leave = asyncio.Event()
        self.pieces: list[bytes] = []  # that were taken at once

    def write_now(self, data: bytes) -> bool:
        if self.slow or self.fails:
            return False
        self.data += data
        self.pieces.append(data)
        return True

    async def write(self, *parts: bytes) -> None:
        if self.slow:
            await self.may_leave.wait()
        if self.fails:
            raise TransportError("it is broken")
        self.data += b"".join(parts)

    def finish(self) -> None:
        self.is_finished = True

    def reset(self) -> None:
        self.is_open = False


class Sender:
    """A lane, and what is told of the words in it."""

    def __init__(self) -> None:
        self.wires: list[Wire] = []
        self.fails_to_open, self.is_relayed = False, False
        self.meanwhile: Callable[[], None] = lambda: None  # happens while a stream is opened
        self.asked: list[bool] = []  # whether it may connect, each time
        self.told: list[str] = []
        self.written: list[int] = []
        note = self.told.append
        self.lane = Lane(
            LIMIT,
            self.open,
            asyncio.create_task,
            self.wrote,
            has_moved=lambda: note("moved"),
            has_broken=lambda: note("broken"),
        )

    def wrote(self, begin: float, end: float, size: int) -> None:
        assert begin <= end
        self.written.append(size)

    async def open(self, may_connect: bool) -> Any:
        self.asked.append(may_connect)
        is_relayed = self.is_relayed
        await asyncio.sleep(0)
        if self.fails_to_open:
            raise TransportError("nobody answers")
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        self.wires.append(Wire(is_relayed))
        return self.wires[-1]

    def put(self, word: bytes, is_packed: bool = True, urgent: bool = False) -> None:
        def note(what: str) -> Callable[[object], None]:
            return lambda _: self.told.append(f"{word.decode()} {what}")

        self.lane.put(QueuedFrame(len(word), lambda: [word], note("sent"), note("lost"), is_packed), urgent)

    async def idle(self) -> None:
        async with asyncio.timeout(10):
            while not self.lane.is_idle:
                await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


async def ready(is_relayed: bool = False) -> tuple[Sender, Wire]:
    """A lane that has a stream, and nothing to do; streams that are opened later are direct."""
    sender = Sender()
    sender.is_relayed = is_relayed
    sender.put(b"a")
    await sender.idle()
    sender.is_relayed = False
    return sender, sender.wires[0]


@pytest.mark.asyncio
async def test_a_word_that_finds_the_stream_ready_leaves_at_once() -> None:
    sender, wire = await ready()
    sender.put(b"b")
    assert sender.lane.is_idle
    assert wire.data == b"ab"
    assert sender.told == ["a sent", "b sent"]


@pytest.mark.asyncio
async def test_of_many_words_all_but_the_first_leave_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "JUST_NOW", 3600.0)
    sender, wire = await ready()
    sender.lane._written_at = -3600.0
    for word in (b"b", b"c", b"d"):
        sender.put(word)
    assert sender.told == ["a sent", "b sent"]
    await sender.idle()
    assert wire.pieces == [b"a", b"b", b"cd"]
    assert sender.told == ["a sent", "b sent", "c sent", "d sent"]


@pytest.mark.asyncio
async def test_what_follows_a_slow_word_waits_for_it_even_if_the_stream_is_ready_again() -> None:
    sender, wire = await ready()
    wire.slow = True
    sender.put(b"b")
    await asyncio.sleep(0)
    wire.slow = False
    sender.put(b"c")
    sender.put(b"!", urgent=True)
    assert wire.data == b"a"
    assert not sender.lane.is_idle, "who closes waits for what has not left"
    wire.may_leave.set()
    await sender.idle()
    sender.put(b"d")
    assert wire.data == b"ab!cd"
    assert sender.told == ["a sent", "b sent", "! sent", "c sent", "d sent"]


@pytest.mark.asyncio
async def test_a_payload_is_told_of_later_only() -> None:
    """Its owner may be in the middle of something."""
    sender, wire = await ready()
    sender.put(b"b", is_packed=False)
    assert sender.told == ["a sent"]
    await sender.idle()
    assert wire.data == b"ab"
    assert sender.told == ["a sent", "b sent"]
    assert sender.written == [1, 1]


@pytest.mark.asyncio
async def test_a_word_that_the_stream_does_not_take_is_lost_once_and_the_next_finds_a_new_stream() -> None:
    sender, wire = await ready()
    wire.fails = True
    sender.put(b"b")
    await sender.idle()
    sender.put(b"c")
    await sender.idle()
    assert [each.data for each in sender.wires] == [b"a", b"c"]
    assert sender.told == ["a sent", "broken", "b lost", "c sent"]
    assert sender.lane.dropped == 1


@pytest.mark.asyncio
async def test_a_stream_that_was_lost_or_given_up_is_not_written_to() -> None:
    sender, wire = await ready()
    wire.is_open = False
    sender.put(b"b")
    await sender.idle()
    sender.lane.renew()
    sender.put(b"c")
    await sender.idle()
    assert [each.data for each in sender.wires] == [b"a", b"b", b"c"]


@pytest.mark.asyncio
async def test_what_is_too_much_is_dropped_ready_or_not() -> None:
    sender, wire = await ready()
    sender.put(b"x" * (LIMIT + 1))
    wire.slow = True
    sender.put(b"b")
    await asyncio.sleep(0)
    for _ in range(2):
        sender.put(b"y" * (LIMIT - 1))
    wire.may_leave.set()
    await sender.idle()
    assert wire.data == b"ab" + b"y" * (LIMIT - 1)
    assert [each.split()[1] for each in sender.told] == ["sent", "lost", "lost", "sent", "sent"]


@pytest.mark.asyncio
async def test_who_moves_loses_nothing_and_speaks_on_the_old_stream_until_the_new_one_is_open() -> None:
    sender, wire = await ready(is_relayed=True)
    sender.lane.move()
    sender.put(b"b")
    assert wire.data == b"ab"
    await until(lambda: wire.is_finished)
    sender.put(b"c")
    await sender.idle()
    assert [each.data for each in sender.wires] == [b"ab", b"c"]
    assert wire.is_open, "ended, not dropped"
    assert sender.told == ["a sent", "b sent", "moved", "c sent"]


@pytest.mark.asyncio
async def test_a_frame_under_way_is_written_to_its_end_before_its_stream_is_ended() -> None:
    sender, wire = await ready(is_relayed=True)
    wire.slow = True
    sender.put(b"b")
    await asyncio.sleep(0)
    sender.lane.move()
    sender.put(b"c")
    await until(lambda: len(sender.wires) == 2)
    assert not wire.is_finished
    wire.may_leave.set()
    await sender.idle()
    assert [each.data for each in sender.wires] == [b"ab", b"c"]
    assert wire.is_finished


@pytest.mark.asyncio
async def test_a_stream_that_is_opened_while_there_comes_a_better_way_is_moved_too() -> None:
    sender = Sender()
    sender.is_relayed = True
    sender.put(b"a")
    await until(lambda: sender.asked)
    assert not sender.wires, "it is about to be opened"
    sender.is_relayed = False
    sender.lane.move()
    await until(lambda: len(sender.wires) == 2)
    await until(lambda: sender.wires[0].is_finished)
    sender.put(b"b")
    await sender.idle()
    assert [each.data for each in sender.wires] == [b"a", b"b"]


@pytest.mark.asyncio
async def test_a_stream_that_is_on_the_better_way_already_is_not_moved() -> None:
    """Its own connection may be the one that is better: the peer would take the stream that is left for lost."""
    sender = Sender()
    sender.meanwhile = sender.lane.move
    sender.put(b"a")
    await sender.idle()
    sender.lane.move()
    await asyncio.sleep(0.01)
    sender.put(b"b")
    await sender.idle()
    assert [(each.data, each.is_finished) for each in sender.wires] == [(b"ab", False)]


@pytest.mark.asyncio
async def test_who_only_moves_connects_with_nobody() -> None:
    sender, _ = await ready(is_relayed=True)
    sender.lane.move()
    await until(lambda: len(sender.wires) == 2)
    assert sender.asked == [True, False]


@pytest.mark.asyncio
async def test_who_loses_the_old_stream_while_moving_opens_no_two_at_once() -> None:
    sender, wire = await ready(is_relayed=True)
    sender.lane.move()
    sender.lane.renew()
    sender.put(b"b")
    await sender.idle()
    assert not wire.is_open
    assert [(each.data, each.is_open) for each in sender.wires] == [(b"a", False), (b"", False), (b"b", True)]


@pytest.mark.asyncio
async def test_who_finds_no_better_way_stays() -> None:
    sender, wire = await ready(is_relayed=True)
    sender.fails_to_open = True
    sender.lane.move()
    await asyncio.sleep(0.01)
    sender.put(b"b")
    await sender.idle()
    assert (wire.data, wire.is_finished) == (b"ab", False)


@pytest.mark.asyncio
async def test_for_what_turns_out_to_be_nothing_nothing_is_written() -> None:
    sender, wire = await ready()
    told = list[str]()
    for words in ([], [b"b"], []):
        sender.lane.put(QueuedFrame(LIMIT // 4, lambda words=words: words, lambda size: told.append(f"sent {size}")))  # type: ignore[misc]
    await sender.idle()
    assert told == ["sent 0", "sent 1", "sent 0"]
    assert wire.data == b"ab"


@pytest.mark.asyncio
async def test_who_waits_for_an_answer_learns_that_the_stream_broke_before_another_takes_its_place() -> None:
    sender, wire = await ready()
    wire.is_open = False  # which nobody has told the lane yet
    sender.put(b"b")
    await sender.idle()
    assert sender.told == ["a sent", "broken", "b sent"]
    assert len(sender.wires) == 2


@pytest.mark.asyncio
async def test_who_waits_for_an_answer_learns_that_a_later_word_broke_the_stream() -> None:
    sender, wire = await ready()
    wire.fails = True
    sender.put(b"b")
    await sender.idle()
    assert sender.told == ["a sent", "broken", "b lost"]


@pytest.mark.asyncio
async def test_a_stream_that_the_lane_itself_gives_up_has_not_broken() -> None:
    sender, _ = await ready()
    sender.lane.renew()
    sender.put(b"b")
    await sender.idle()
    assert sender.told == ["a sent", "b sent"]
