"""Sending by a socket: in order, once where all goes well, and what may be lost with a socket goes again."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from shoal.protocol.base.errors import TransportError
from shoal.protocol.messages.bulk import Flow
from shoal.protocol.net.bulk.backlog import TRIES, Backlog, Packed, QueuedPayload
from shoal.protocol.net.bulk.flow_control import GRAIN, MOST, RECORD, SHARED, Report, ReportWriter
from shoal.protocol.net.bulk.pacing import SocketPacer, Unpaced
from shoal.protocol.net.bulk.posts import Posts
from shoal.protocol.net.bulk.sealing import TAG
from shoal.protocol.net.bulk.sender import Sender
from shoal.protocol.net.bulk.spare_capacity import PathRtt, SpareCapacity
from shoal.protocol.net.system.throttle import Throttle
from tests.unit.bulk.kit import KEY, LIMIT, in_thread, load, opened_pair, parts
from tests.unit.bulk.test_receiver import eventually

MIB = 1 << 20


@dataclass
class Outcome:
    """What the loop was told."""

    sent: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)  # bytes
    ends: list[bool] = field(default_factory=list)

    def queued(self, number: int, size: int = 100) -> QueuedPayload:
        def pack() -> Packed:
            return parts(load(number, bytes(size)))

        return QueuedPayload(
            Flow.SCATTER, 0, pack, lambda bytes: self.sent.append(number), lambda reason: self.lost.append(number)
        )

    def wrote(self, begin: float, end: float, size: int) -> None:
        assert begin <= end
        self.written.append(size)


class Turns(list[str]):
    """What whoever paces a socket hears of it."""

    def take(self) -> None:
        self.append("take")

    def rest(self) -> None:
        self.append("rest")


@asynccontextmanager
async def sending(
    backlog: Backlog, credit: int = SHARED, turn: SocketPacer | None = None
) -> AsyncIterator[tuple[Outcome, Sender, socket.socket]]:
    outcome = Outcome()
    with opened_pair() as (mine, theirs):
        made = Sender(
            mine,
            backlog,
            SpareCapacity(PathRtt()),
            Unpaced() if turn is None else turn,
            Throttle().up,
            Posts(),
            outcome.wrote,
            lambda: outcome.ends.append(True),
        )
        made.start()
        theirs.socket.sendall(ReportWriter(KEY).record(Report(credit, 0)))
        try:
            yield outcome, made, theirs.socket
        finally:
            made.close()
            await eventually(lambda: outcome.ends)
            made.thread.join(LIMIT)
            assert not made.thread.is_alive()
            assert mine.socket.fileno() == -1
            assert len(outcome.ends) == 1


@pytest.mark.asyncio
async def test_what_is_put_is_written_in_its_order_and_said_once() -> None:
    backlog = Backlog(MIB)
    async with sending(backlog) as (outcome, _, wire):
        for number in range(50):
            backlog.put(outcome.queued(number))
        await eventually(lambda: len(outcome.sent) == 50)
        assert outcome.sent == list(range(50))
        total = sum(sum(map(len, parts(load(number, bytes(100))))) + 2 * TAG for number in range(50))
        assert sum(outcome.written) == total
        assert len(await asyncio.to_thread(wire.recv, total, socket.MSG_WAITALL)) == total
    assert not backlog.clear(), "who closes it has no wish that anything goes again"
    assert not outcome.lost


@pytest.mark.asyncio
async def test_who_paces_hears_before_each_payload_and_when_there_is_none() -> None:
    backlog, turns = Backlog(MIB), Turns()
    async with sending(backlog, turn=turns) as (outcome, _, _):
        await eventually(lambda: turns)
        assert set(turns) == {"rest"}
        backlog.put(outcome.queued(1))
        await eventually(lambda: "take" in turns and turns[-1] == "rest")
        turns.clear()
    assert turns[-1] == "rest", "for good"


@pytest.mark.asyncio
async def test_without_credit_means_go_and_contributions_with_the_credit() -> None:
    backlog, teller = Backlog(MIB), ReportWriter(KEY)
    teller.record(Report(0, 0))  # the first one is `sending`'s
    async with sending(backlog, credit=2 * GRAIN) as (outcome, _, wire):
        reader = in_thread(lambda: drain(wire))
        for number, size in enumerate((GRAIN, GRAIN, GRAIN + MIB, MIB)):
            backlog.put(outcome.queued(number, size))
        await eventually(lambda: outcome.sent == [0, 1])
        mean = outcome.queued(9)
        mean.flow = Flow.GATHER
        backlog.put(mean)
        await eventually(lambda: outcome.sent == [0, 1, 9])
        assert len(backlog) == 2
        wire.sendall(teller.record(Report(3 * GRAIN, 0)))
        await eventually(lambda: outcome.sent == [0, 1, 9, 2])
        assert len(backlog) == 1, "which took more than was left"
        wire.sendall(teller.record(Report(4 * GRAIN, 0)))
        await eventually(lambda: outcome.sent == [0, 1, 9, 2, 3])
    reader.join(LIMIT)


@pytest.mark.asyncio
@pytest.mark.parametrize("wrong", [Report(SHARED, 1), Report(SHARED - 1, 0), Report(SHARED, 0), None])
async def test_a_report_that_nobody_means_breaks_the_socket(wrong: Report | None) -> None:
    teller = ReportWriter(KEY)
    teller.record(Report(0, 0))  # the first one is `sending`'s
    async with sending(Backlog(MIB)) as (outcome, made, wire):
        await eventually(lambda: made._credit.available == SHARED)
        wire.sendall(bytes(RECORD) if wrong is None else teller.record(wrong))
        await eventually(lambda: outcome.ends)


@pytest.mark.asyncio
async def test_a_peer_that_reads_and_never_says_so_does_not_make_us_keep_ever_more() -> None:
    """Means need no credit, and what the peer has not said to have is kept: so it gets no more of them."""
    backlog, teller = Backlog(MIB), ReportWriter(KEY)
    teller.record(Report(0, 0))  # the first one is `sending`'s
    async with sending(backlog) as (outcome, made, wire):
        reader = in_thread(lambda: drain(wire))
        means = [outcome.queued(number, MIB) for number in range(2 * MOST // MIB)]
        for each in means:
            each.flow = Flow.GATHER
            backlog.put(each)
        await eventually(lambda: len(outcome.sent) == MOST // MIB)
        made.thread.join(0.2)
        assert len(made._unacknowledged.payloads()) == MOST // MIB
        assert len(backlog) == MOST // MIB, "these wait"
        assert not outcome.ends
        wire.sendall(teller.record(Report(SHARED, 3)))
        await eventually(lambda: len(outcome.sent) == MOST // MIB + 3)
    reader.join(LIMIT)


def drain(wire: socket.socket) -> None:
    with suppress(OSError):
        while wire.recv(1 << 20):
            pass


@pytest.mark.asyncio
async def test_what_cannot_be_encoded_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    backlog = Backlog(MIB)
    async with sending(backlog) as (outcome, _, _):
        nothing: list[Packed] = []
        bad = QueuedPayload(Flow.SCATTER, 0, nothing.pop, lambda size: None, lambda reason: outcome.lost.append(1))
        backlog.put(bad)
        backlog.put(outcome.queued(2))
        await eventually(lambda: outcome.sent == [2])
    assert outcome.lost == [1]
    assert "cannot be encoded" in caplog.text


@pytest.mark.asyncio
async def test_what_is_not_wanted_any_more_when_its_turn_comes_is_not_even_encoded() -> None:
    backlog, packed = Backlog(MIB), list[int]()
    async with sending(backlog) as (outcome, _, _):
        void, again = outcome.queued(1), outcome.queued(2)
        void.is_wanted = again.is_wanted = lambda: False
        void.pack = again.pack = lambda: packed.append(1)  # type: ignore[assignment, return-value]
        again.was_sent = True
        for each in (void, again, outcome.queued(3)):
            backlog.put(each)
        await eventually(lambda: outcome.sent == [3])
    assert outcome.lost == [1], "what was sent before is not told of twice"
    assert not packed


@pytest.mark.asyncio
@pytest.mark.parametrize("taken", [0, 7, 20])
async def test_what_was_in_hand_and_what_did_not_arrive_goes_again_when_the_socket_breaks(taken: int) -> None:
    backlog, teller = Backlog(MIB), ReportWriter(KEY)
    teller.record(Report(0, 0))  # the first one is `sending`'s
    async with sending(backlog, credit=SHARED) as (outcome, made, wire):
        sent = [outcome.queued(number, MIB) for number in range(60)]  # more than all buffers hold
        for each in sent:
            backlog.put(each)
        for _ in range(20):
            await asyncio.to_thread(wire.recv, MIB, socket.MSG_WAITALL)
        if taken:
            wire.sendall(teller.record(Report(SHARED, taken)))
            await eventually(lambda: made._unacknowledged.payloads()[0] is sent[taken])
        wire.close()
        await eventually(lambda: outcome.ends)
        assert backlog.clear() == sent[taken:], "all, and in their order"
        assert len(outcome.sent) == sum(each.was_sent for each in sent)
        assert outcome.sent == sorted(set(outcome.sent))
        assert not outcome.lost


@pytest.mark.asyncio
async def test_a_socket_that_the_peer_closes_while_nothing_is_sent_is_noticed() -> None:
    """Else the next payload would go into a socket that nobody reads, and nobody would hear of it."""
    backlog = Backlog(MIB)
    async with sending(backlog) as (outcome, _, wire):
        first = outcome.queued(1)
        backlog.put(first)
        await eventually(lambda: outcome.sent == [1])
        wire.close()
        await eventually(lambda: outcome.ends)
        assert backlog.clear() == [first], "nobody knows whether it was read"


@pytest.mark.asyncio
async def test_a_payload_that_sockets_break_with_again_and_again_is_lost() -> None:
    backlog = Backlog(MIB)
    outcome = Outcome()
    queued = outcome.queued(1, 10 * MIB)
    backlog.put(queued)
    reasons: list[TransportError] = []
    queued.lost = reasons.append
    for tries in range(1, TRIES + 1):
        async with sending(backlog) as (_, made, wire):
            await asyncio.to_thread(wire.recv, 1000)
            wire.close()
            made.thread.join(LIMIT)
        assert queued.tries == tries
    await eventually(lambda: reasons)
    assert len(backlog) == 0
    assert "again and again" in str(reasons[0])
