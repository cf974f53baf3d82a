"""The carrier: by a socket where there is one, else by a stream, and whatever breaks, each payload gets away once."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from shoal.protocol.base.errors import RemoteError, TransportError
from shoal.protocol.messages.bulk import Flow
from shoal.protocol.net.bulk import carrier, flow_control
from shoal.protocol.net.bulk.backlog import Packed, QueuedPayload
from shoal.protocol.net.bulk.carrier import MAX_SOCKETS, REFUSED, STREAM_PAYLOADS, Carrier
from shoal.protocol.net.bulk.endpoint import ConnectionLimit
from shoal.protocol.net.bulk.flow_control import SHARED, Report, ReportWriter
from shoal.protocol.net.bulk.handshake import BulkSocket
from shoal.protocol.net.bulk.pacing import Unpaced
from shoal.protocol.net.bulk.posts import Posts
from shoal.protocol.net.bulk.spare_capacity import TcpInfo
from shoal.protocol.net.system.throttle import Throttle
from shoal.protocol.net.transport.streams import QueuedFrame
from tests.unit.bulk.kit import KEY, LIMIT, load, parts, tcp_pair
from tests.unit.bulk.test_receiver import eventually

SHORT = 0.1  # seconds


class Stream:
    """In the place of a lane: keeps what it is given until the test takes it."""

    def __init__(self) -> None:
        self.payloads: list[QueuedFrame] = []
        self.taken: list[bytes] = []

    def put(self, queued: QueuedFrame) -> None:
        self.payloads.append(queued)

    def take(self) -> None:
        queued = self.payloads.pop(0)
        frame = b"".join(queued.pack())
        self.taken.append(frame)
        queued.sent(len(frame))

    def break_off(self) -> None:
        queued = self.payloads.pop(0)
        assert queued.lost is not None
        queued.lost(TransportError("the stream broke"))

    def clear(self, reason: TransportError) -> None:
        while self.payloads:
            self.break_off()


@dataclass
class Endpoint:
    posts: Posts
    throttle: Throttle
    limit: ConnectionLimit


@dataclass
class World:
    """A carrier and all around it."""

    stream: Stream = field(default_factory=Stream)  # of contributions
    means: Stream = field(default_factory=Stream)
    sent: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    attempts: list[float] = field(default_factory=list)
    extras: list[float] = field(default_factory=list)  # attempts at one more socket
    errors: list[BaseException] = field(default_factory=list)
    own: list[socket.socket] = field(default_factory=list)
    peers: list[socket.socket] = field(default_factory=list)
    is_up: bool = True
    limit: int = 1000

    def __post_init__(self) -> None:
        async def connect(is_extra: bool) -> bool:
            (self.extras if is_extra else self.attempts).append(asyncio.get_running_loop().time())
            return await self.connect()

        lanes: Any = {Flow.SCATTER: self.stream, Flow.GATHER: self.means}
        self.endpoint: Any = Endpoint(Posts(), Throttle(), ConnectionLimit())
        self.tasks = set[asyncio.Task[None]]()
        self.carrier = Carrier(
            self.limit, lanes, connect, self.spawn, lambda *_: None, lambda: self.is_up, lambda *_: Unpaced()
        )

    async def connect(self) -> bool:
        return False

    def spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if (error := task.exception()) is not None:
            self.errors.append(error)

    def put(self, *numbers: int, size: int = 0) -> None:
        for number in numbers:
            self.carrier.put(self.queued(number, size))

    def queued(self, number: int, size: int, flow: Flow = Flow.SCATTER) -> QueuedPayload:
        def pack() -> Packed:
            return parts(load(number))

        return QueuedPayload(
            flow, size, pack, lambda size: self.sent.append(number), lambda reason: self.lost.append(number)
        )

    def open(self) -> socket.socket:
        """A socket comes; its other end."""
        mine, theirs = tcp_pair()
        self.own.append(mine)
        self.peers.append(theirs)
        self.carrier.opened(BulkSocket(mine, KEY), self.endpoint)
        theirs.sendall(ReportWriter(KEY).record(Report(SHARED, 0)))
        return theirs


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    made.is_up = False
    made.carrier.clear(TransportError("the end"))
    await eventually(lambda: not made.tasks and all(each.fileno() == -1 for each in made.own))
    for each in made.peers:
        each.close()
    assert not made.errors


def answering(*answers: bool | Exception) -> Callable[[], Coroutine[Any, Any, bool]]:
    """A `connect` that has these outcomes, and then no chance."""
    left = list(answers)

    async def connect() -> bool:
        outcome = left.pop(0) if left else False
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return connect


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrier, "GRACE", SHORT)
    monkeypatch.setattr(carrier, "RETRY_DELAYS", (2 * SHORT, 5 * SHORT))


@pytest.mark.asyncio
async def test_without_a_chance_a_stream_is_used_at_once_and_given_few_at_a_time() -> None:
    async with world() as it:
        it.put(*range(5))
        assert not it.stream.payloads, "a socket is tried for first"
        await eventually(lambda: it.stream.payloads)
        assert len(it.stream.payloads) == STREAM_PAYLOADS
        while it.stream.payloads:
            it.stream.take()
            assert len(it.stream.payloads) <= STREAM_PAYLOADS
        assert it.sent == list(range(5))
        assert it.stream.taken == [b"".join(parts(load(number))) for number in range(5)]
        assert len(it.attempts) == 1
        assert not it.carrier.sockets


@pytest.mark.asyncio
async def test_means_do_not_wait_for_contributions_whose_stream_is_not_read() -> None:
    async with world() as it:
        it.put(*range(5))
        for number in range(5, 10):
            it.carrier.put(it.queued(number, 0, Flow.GATHER))
        await eventually(lambda: it.means.payloads)
        while it.means.payloads:
            it.means.take()
        assert it.sent == list(range(5, 10))
        assert len(it.stream.payloads) == STREAM_PAYLOADS


@pytest.mark.asyncio
async def test_a_socket_that_comes_in_the_time_of_grace_takes_everything() -> None:
    async with world() as it:
        gate = asyncio.Event()

        async def connect() -> bool:
            it.open()
            await gate.wait()
            return True

        it.connect = connect  # type: ignore[method-assign]
        it.put(*range(5))
        await eventually(lambda: it.sent == list(range(5)))
        gate.set()
        assert it.carrier.sockets
        assert not it.stream.payloads
        it.put(5)
        await eventually(lambda: it.sent[-1] == 5)
        assert len(it.attempts) == 1


@pytest.mark.asyncio
async def test_payloads_wait_no_longer_than_the_time_of_grace_for_a_socket() -> None:
    async with world() as it:
        gate = asyncio.Event()

        async def connect() -> bool:
            await gate.wait()
            return False

        it.connect = connect  # type: ignore[method-assign]
        begin = asyncio.get_running_loop().time()
        it.put(1)
        await eventually(lambda: it.stream.payloads)
        assert asyncio.get_running_loop().time() - begin >= SHORT
        it.open()  # after all
        it.put(2)
        await eventually(lambda: it.sent == [2])
        it.stream.take()
        gate.set()


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [TransportError("no answer"), RemoteError("nonsense")])
async def test_an_attempt_that_fails_in_any_way_is_no_error_of_ours(error: Exception) -> None:
    async with world() as it:
        it.connect = answering(error)  # type: ignore[method-assign]
        it.put(1)
        await eventually(lambda: it.stream.payloads)


@pytest.mark.asyncio
async def test_a_socket_is_tried_for_again_ever_more_seldom_and_at_once_by_another_path() -> None:
    async with world() as it:
        it.put(0)
        due = asyncio.get_running_loop().time() + 20 * SHORT
        number = 0
        while asyncio.get_running_loop().time() < due:
            number += 1
            it.put(number)
            while it.stream.payloads:
                it.stream.take()
            await asyncio.sleep(SHORT / 10)
        pauses = [late - early for early, late in zip(it.attempts, it.attempts[1:], strict=False)]
        assert 3 <= len(it.attempts) <= 6
        least = [1.9 * SHORT, 3.9 * SHORT, 4.9 * SHORT]
        assert all(pause >= most for pause, most in zip(pauses, least, strict=False))
        count = len(it.attempts)
        it.carrier.try_anew()
        it.put(number + 1)
        await eventually(lambda: len(it.attempts) == count + 1)


@pytest.mark.asyncio
async def test_what_a_broken_socket_had_goes_by_the_next_one() -> None:
    async with world() as it:
        it.connect = answering(True, True)  # type: ignore[method-assign]
        first = it.open()
        it.put(1, 2, 3)
        await eventually(lambda: it.sent == [1, 2, 3])
        first.close()
        await eventually(lambda: not it.carrier.sockets)
        second = it.open()
        it.put(4)
        await eventually(lambda: it.sent == [1, 2, 3, 4])
        expected = sum(sum(map(len, parts(load(number)))) + 32 for number in (1, 2, 3, 4))
        assert len(await asyncio.to_thread(second.recv, expected, socket.MSG_WAITALL)) == expected
        assert it.sent == [1, 2, 3, 4], "said once of each"


@pytest.mark.asyncio
async def test_where_every_socket_breaks_at_once_streams_carry_everything() -> None:
    """As where something on the way lets TLS pass, and nothing else."""
    async with world() as it:

        async def connect() -> bool:
            it.open().close()
            return True

        it.connect = connect  # type: ignore[method-assign]
        taken = set[int]()
        frames = {b"".join(parts(load(number))): number for number in range(3)}
        it.put(*range(3))
        async with asyncio.timeout(20):
            while taken != {0, 1, 2}:
                while it.stream.payloads:
                    it.stream.take()
                taken = {frames[frame] for frame in it.stream.taken}
                await asyncio.sleep(0.01)
        assert not it.lost


@pytest.mark.asyncio
async def test_a_peer_that_promises_sockets_and_opens_none_gets_streams() -> None:
    async with world() as it:
        it.connect = answering(*[True] * 1000)  # type: ignore[method-assign]
        it.put(1)
        await eventually(lambda: it.stream.payloads)


@pytest.mark.asyncio
async def test_a_stream_that_breaks_gives_back_and_a_payload_that_always_breaks_it_is_lost() -> None:
    async with world() as it:
        it.put(1, 2)
        await eventually(lambda: len(it.stream.payloads) == 2)
        it.stream.break_off()
        it.stream.take()
        await eventually(lambda: it.stream.payloads)
        while it.stream.payloads:
            it.stream.break_off()
        assert (it.sent, it.lost, it.carrier.dropped) == ([2], [1], 1)


@pytest.mark.asyncio
async def test_a_peer_out_of_reach_loses_everything_and_each_is_said_once() -> None:
    async with world() as it:
        it.put(*range(5))
        await eventually(lambda: it.stream.payloads)
        it.is_up = False
        it.carrier.clear(TransportError("gone"))
        assert sorted(it.lost) == list(range(5))
        assert it.carrier.dropped == 5
        assert not it.sent


@pytest.mark.asyncio
async def test_too_much_is_dropped() -> None:
    async with world() as it:
        it.put(1, 2, size=600)
        assert it.lost == [2]
        assert it.carrier.dropped == 1


@pytest.mark.asyncio
async def test_who_only_has_to_learn_yet_that_we_belong_together_is_asked_again_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(carrier, "RETRY_DELAYS", (600.0, 600.0))
    monkeypatch.setattr(carrier, "REFUSED_DELAYS", (SHORT, 600.0))
    async with world() as it:
        refusals = [TransportError("we know of no run", REFUSED)] * 3
        it.connect = answering(*refusals, True)  # type: ignore[method-assign]
        it.put(1)
        await eventually(lambda: it.stream.payloads)
        assert len(it.attempts) == 1, "meanwhile payloads go by the stream"
        it.put(*range(2, 9))
        await eventually(lambda: len(it.attempts) == 4)
        pauses = [late - early for early, late in zip(it.attempts, it.attempts[1:], strict=False)]
        assert all(pause >= 0.9 * least for pause, least in zip(pauses, (SHORT, 2 * SHORT, 4 * SHORT), strict=True))
        it.open()
        await eventually(lambda: len(it.sent) >= 6)


@pytest.mark.asyncio
async def test_a_carrier_that_is_closed_begins_nothing_whatever_still_breaks() -> None:
    async with world() as it:
        it.connect = answering(True)  # type: ignore[method-assign]
        peer = it.open()
        it.put(1)
        await eventually(lambda: it.sent == [1])
        peer.close()  # which the carrier hears of only when it is closed
        it.carrier.close(TransportError("the end"))
        it.put(2)
        await eventually(lambda: it.own[0].fileno() == -1)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not it.attempts
        assert not it.tasks
        assert it.lost == [2]


@pytest.mark.asyncio
async def test_a_stream_is_not_given_what_nobody_wants_any_more() -> None:
    async with world() as it:
        wanted = True
        payloads = [it.queued(number, 0) for number in range(2)]
        for each in payloads:
            each.is_wanted = lambda: wanted
            it.carrier.put(each)
        await eventually(lambda: len(it.stream.payloads) == 2)
        it.stream.take()
        wanted = False
        it.stream.take()
        assert (it.sent, it.lost, it.carrier.dropped) == ([0], [1], 0)
        assert it.stream.taken[1] == b""


class Wide:
    """In the place of a sender's judgement: says what the test wants, and counts how often it was begun anew."""

    def __init__(self) -> None:
        self.has_room, self.times_anew = True, 0

    def see(self, _: TcpInfo) -> None:
        """Looks change nothing."""

    def judge_anew(self) -> None:
        self.times_anew += 1


@pytest.fixture
def judges(monkeypatch: pytest.MonkeyPatch) -> list[Wide]:
    """The judgement of each socket, in the order in which they come; no payload waits for an acknowledgement."""
    made: list[Wide] = []

    def make(_: object) -> Wide:
        made.append(Wide())
        return made[-1]

    monkeypatch.setattr(carrier, "SpareCapacity", make)
    monkeypatch.setattr(flow_control, "MOST", 1 << 60)
    return made


async def busy(it: World, until: Callable[[], bool]) -> None:
    """Payloads wait and go by the sockets there are, again and again; so few that the sockets' buffers hold them."""
    async with asyncio.timeout(LIMIT):
        while not until():
            it.sent.clear()
            for number in range(20):
                it.carrier.put(it.queued(number, 0, Flow.GATHER))
            await eventually(lambda: len(it.sent) == 20)


def later(seconds: float) -> Callable[[], bool]:
    """Whether so much time has passed from now: for what must not happen."""
    loop = asyncio.get_running_loop()
    due = loop.time() + seconds
    return lambda: loop.time() >= due


@pytest.mark.asyncio
async def test_where_the_path_has_room_there_are_more_sockets_and_no_more_than_most(
    judges: list[Wide],
) -> None:
    async with world() as it:

        async def connect() -> bool:
            it.open()
            return True

        it.connect = connect  # type: ignore[method-assign]
        await busy(it, lambda: it.carrier.sockets == MAX_SOCKETS)
        await busy(it, later(6 * SHORT))
        assert it.carrier.sockets == MAX_SOCKETS
        assert (len(it.attempts), len(it.extras)) == (1, MAX_SOCKETS - 1)
        assert not it.lost


@pytest.mark.asyncio
async def test_one_socket_that_fills_the_path_is_enough(judges: list[Wide]) -> None:
    async with world() as it:
        it.open()
        it.open()
        judges[0].has_room = False
        await busy(it, later(SHORT))
        assert (it.carrier.sockets, it.extras) == (2, [])
        judges[0].has_room = True
        await busy(it, lambda: bool(it.extras))


@pytest.mark.asyncio
async def test_all_are_judged_anew_when_there_is_one_more(judges: list[Wide]) -> None:
    async with world() as it:
        for _ in range(3):
            it.open()
        assert [each.times_anew for each in judges] == [2, 1, 0]


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [TransportError("no", REFUSED), RemoteError("no"), None])
async def test_an_extra_socket_that_is_not_to_be_had_is_tried_for_ever_more_seldom(
    judges: list[Wide], error: Exception | None
) -> None:
    async with world() as it:
        it.connect = answering(*[False if error is None else error] * 100)  # type: ignore[method-assign]
        it.open()
        await busy(it, lambda: len(it.extras) > 2)
        first, second = it.extras[1] - it.extras[0], it.extras[2] - it.extras[1]
        assert first >= 0.9 * carrier.RETRY_DELAYS[0]
        assert second >= 0.9 * min(2 * carrier.RETRY_DELAYS[0], carrier.RETRY_DELAYS[1])
        assert (it.carrier.sockets, it.attempts) == (1, [])
        assert not it.lost
        assert not it.stream.payloads


@pytest.mark.asyncio
async def test_extra_sockets_that_break_at_once_lose_nothing(judges: list[Wide]) -> None:
    async with world() as it:

        async def connect() -> bool:
            it.open().close()
            return True

        it.connect = connect  # type: ignore[method-assign]
        it.open()
        await busy(it, lambda: len(it.extras) > 1)
        await eventually(lambda: it.carrier.sockets == 1)
        assert (it.lost, it.attempts) == ([], [])


@pytest.mark.asyncio
async def test_a_carrier_may_be_closed_while_it_tries_for_one_more(judges: list[Wide]) -> None:
    async with world() as it:
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def connect() -> bool:
            return await answer

        it.connect = connect  # type: ignore[method-assign]
        it.open()
        await busy(it, lambda: bool(it.extras))
        it.carrier.close(TransportError("the end"))
        answer.set_exception(TransportError("the end"))
        await eventually(lambda: not it.tasks)
        assert it.carrier.sockets == 0
