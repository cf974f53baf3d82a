"""Receiving by a socket: what each kind of bad word costs, and that contributions come on credit."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import NO_DIGEST, PeerId, RunId
from shoal.protocol.base.wire import MAX_BULK_FRAME, Message
from shoal.protocol.messages.averaging import Contribution, Made, Mean
from shoal.protocol.messages.bulk import Flow
from shoal.protocol.net.bulk import receiver
from shoal.protocol.net.bulk.flow_control import GRAIN, RECORD, SHARED, Credit, MemoryAccount, Report, ReportReader
from shoal.protocol.net.bulk.framing import PREFIX, packed_head, prefix
from shoal.protocol.net.bulk.posts import Posts
from shoal.protocol.net.bulk.receiver import AHEAD, Receiver
from shoal.protocol.net.bulk.sealing import Sealer
from shoal.protocol.net.system.throttle import Throttle
from tests.unit.bulk.kit import KEY, LIMIT, PEER, RUN, in_thread, load, numbers, opened_pair, parts

MIB = 1 << 20


@dataclass
class End:
    """A receiver, what it has handed on, and the peer's end of its socket."""

    wire: socket.socket
    sealer: Sealer = field(default_factory=lambda: Sealer(KEY))
    memory: MemoryAccount = field(default_factory=MemoryAccount)
    came: list[Message] = field(default_factory=list)
    others: list[int] = field(default_factory=list)  # sizes of what had no message
    complaints: list[RemoteError] = field(default_factory=list)
    ends: list[bool] = field(default_factory=list)

    def send(self, *messages: Contribution, run: RunId = RUN) -> None:
        for each in messages:
            self.wire.sendall(self.sealer.seal(*parts(each, run)))

    def keep(self, run: RunId, message: Message | None, begin: float, end: float, size: int) -> None:
        assert begin <= end
        if message is None:
            self.others.append(size)
        else:
            assert run == RUN
            self.came.append(message)


def granted(size: int) -> Credit:
    credit = Credit()
    credit.grow(size)
    return credit


@asynccontextmanager
async def receiving(credit: Credit | None = None) -> AsyncIterator[tuple[End, Receiver]]:
    with opened_pair() as (mine, theirs):
        end = End(mine.socket)
        made = Receiver(
            theirs,
            PEER,
            end.memory,
            credit or granted(SHARED),
            Throttle().down,
            Posts(),
            lambda run: run == RUN,
            end.complaints.append,
            end.keep,
            lambda: end.ends.append(True),
        )
        made.start()
        try:
            yield end, made
        finally:
            made.close()
            await eventually(lambda: end.ends)
            made.thread.join(LIMIT)
            assert not made.thread.is_alive()
            assert theirs.socket.fileno() == -1


async def eventually(condition: object) -> None:
    async with asyncio.timeout(LIMIT):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.002)


@pytest.mark.asyncio
async def test_payloads_come_in_their_order() -> None:
    async with receiving() as (end, _):
        messages = [load(number, bytes([number]) * number * 1000) for number in range(20)]
        in_thread(lambda: end.send(*messages))
        await eventually(lambda: len(end.came) == 20)
        assert numbers(end.came) == list(range(20))
        assert [bytes(each.payload) for each in end.came] == [each.payload for each in messages]  # type: ignore[attr-defined]
        assert not end.complaints


@pytest.mark.asyncio
async def test_the_largest_payload_comes() -> None:
    async with receiving() as (end, _):
        in_thread(lambda: end.send(load(1, bytes(MAX_BULK_FRAME))))
        await eventually(lambda: len(end.came) == 1)


@pytest.mark.asyncio
async def test_a_payload_of_another_run_is_read_and_handed_on_as_nothing() -> None:
    async with receiving() as (end, _):
        end.send(load(1), run=RunId(b"x" * 32))
        end.send(load(2))
        await eventually(lambda: numbers(end.came) == [2])
        assert len(end.others) == 1
        assert not end.complaints


@pytest.mark.asyncio
async def test_a_bad_message_costs_itself_and_a_rest_but_not_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "REST", 0.1)
    async with receiving() as (end, _):
        begin = time.monotonic()
        for _ in range(3):
            whole = packed_head(RUN, load(1))
            head = whole[:-35] + b"\xff" + whole[-34:]  # the weight, before the root at the end, is none any more
            end.wire.sendall(end.sealer.seal(prefix(len(head), 4, Flow.SCATTER), head, b"junk"))
        end.send(load(2))
        await eventually(lambda: numbers(end.came) == [2])
        assert time.monotonic() - begin >= 3 * 0.1
        assert [each.peer for each in end.complaints] == [PEER] * 3
        assert len(end.others) == 3
        assert not end.ends


@pytest.mark.asyncio
@pytest.mark.parametrize("at", [PREFIX.size + 5, -1], ids=["head", "payload"])
async def test_a_broken_seal_costs_the_socket_and_names_the_sender(at: int) -> None:
    async with receiving() as (end, _):
        end.send(load(1))
        broken = bytearray(end.sealer.seal(*parts(load(2))))
        broken[at] ^= 1
        end.wire.sendall(broken)
        await eventually(lambda: end.ends)
        assert numbers(end.came) == [1]
        assert [each.peer for each in end.complaints] == [PEER]
        assert "altered" in str(end.complaints[0])
        with suppress(ConnectionResetError):
            assert end.wire.recv(1) == b""


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "announced",
    [PREFIX.pack(3 + MAX_BULK_FRAME + 1, 0, 1), PREFIX.pack(0, 100, 1), PREFIX.pack(1 << 20, 1 << 15, 1)],
    ids=["too long", "shorter than its head", "too long a head"],
)
async def test_bad_framing_costs_the_socket_and_names_the_sender(announced: bytes) -> None:
    async with receiving() as (end, _):
        end.wire.sendall(announced)
        await eventually(lambda: end.ends)
        assert [each.peer for each in end.complaints] == [PEER]
        assert "limits" in str(end.complaints[0])


@pytest.mark.asyncio
@pytest.mark.parametrize("cut", [0, 3, 20, -20])
async def test_an_end_in_the_midst_of_a_frame_is_nobodys_fault(cut: int) -> None:
    async with receiving() as (end, _):
        end.send(load(1))
        end.wire.sendall(bytes(end.sealer.seal(*parts(load(2))))[:cut])
        end.wire.close()
        await eventually(lambda: end.ends)
        assert numbers(end.came) == [1]
        assert not end.complaints


@pytest.mark.asyncio
async def test_contributions_without_credit_cost_the_socket_and_name_the_sender() -> None:
    async with receiving(granted(2 * MIB)) as (end, _):

        def flood() -> None:
            with suppress(OSError):
                end.send(*(load(number, bytes(MIB)) for number in range(3)))

        in_thread(flood)
        await eventually(lambda: end.ends)
        assert numbers(end.came) == [0, 1]
        assert [each.peer for each in end.complaints] == [PEER]
        assert "without credit" in str(end.complaints[0])


@pytest.mark.asyncio
async def test_means_need_no_credit() -> None:
    async with receiving(Credit()) as (end, _):
        head = packed_head(RUN, Mean(0, 1, 7, Made(NO_DIGEST, b"\x01", 0, PeerId("owner"), 1, b""), b""))
        end.wire.sendall(end.sealer.seal(prefix(len(head), 4, Flow.GATHER), head, b"mean"))
        await eventually(lambda: end.came)
        assert not end.complaints
        assert end.memory.held == 0


@pytest.mark.asyncio
async def test_credit_that_is_given_is_heard_and_good() -> None:
    async with receiving(Credit()) as (end, made):
        made.credit.grow(4 * MIB)
        made.report()
        assert ReportReader(KEY).heard(await asyncio.to_thread(end.wire.recv, 100)) == Report(4 * MIB, 0)
        in_thread(lambda: end.send(*(load(number, bytes(MIB)) for number in range(4))))
        await eventually(lambda: numbers(end.came) == [0, 1, 2, 3])
        assert not end.complaints


@pytest.mark.asyncio
async def test_what_the_loop_took_is_told_whatever_it_was() -> None:
    async with receiving() as (end, _):
        listener = ReportReader(KEY)
        for run in (RUN, RunId(b"x" * 32)):
            in_thread(lambda run=run: end.send(*(load(number, bytes(MIB)) for number in range(2)), run=run))  # type: ignore[misc]
            told = listener.heard(await asyncio.to_thread(end.wire.recv, RECORD, socket.MSG_WAITALL))
            assert told == Report(SHARED, len(end.came) + len(end.others))
        assert len(end.came) == len(end.others) == 2


@pytest.mark.asyncio
async def test_who_does_not_read_what_it_is_told_is_hung_up_on() -> None:
    async with receiving() as (end, made):
        for _ in range(1_000_000):
            made.credit.grow(GRAIN)
            made.report()
            if not made._is_open:
                break
        await eventually(lambda: end.ends)


@pytest.mark.asyncio
async def test_no_more_than_a_few_payloads_wait_for_the_loop() -> None:
    async with receiving() as (end, made):
        in_thread(lambda: end.send(*(load(number, bytes(MIB)) for number in range(20))))
        made.thread.join(1.0)  # the loop is busy with something else
        assert end.memory.held <= (AHEAD + 1) * MIB
        await eventually(lambda: len(end.came) == 20)


@pytest.mark.asyncio
async def test_to_close_ends_the_thread_wherever_it_waits() -> None:
    async with receiving() as (end, made):
        made.close()  # it waits for a frame
        await eventually(lambda: end.ends)
    async with receiving() as (end, made):
        in_thread(lambda: end.send(*(load(number) for number in range(3 * AHEAD))))
        made.thread.join(0.1)
        made.close()  # it waits for the loop
        await eventually(lambda: end.ends)
