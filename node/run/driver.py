"""The shell around a member's cores: feed, drain, repeat.

Every input of a run on this node (messages, timers, commands) passes through here, one after the other, in the event
loop. Effects are carried out in order, also those of commands that the application gives while it is told an event. An
error of our own (a bug, a broken disk) ends the run on this node at once: a member that cannot keep its promises must
be silent, so that the others see it dead and go on. A peer's error that shows in a timer or a command, where nobody can
be answered, is logged.

A record is written in a thread, and the effects after it wait until it is on disk. Exceptions are timers, membership's
messages, and events about peers' errors: they reveal nothing of votes. Means are large, so nothing waits for one that
we have made but its own way to others, and the next record; it leaves once it is written, which is not to say forced.
For those of a result, which are forced to disk, nothing waits but our next vote on a result (`kept`) and the state that
it leads to. They are written once the result is applied, as what is written earlier takes the processor from members on
this machine that still decode. So a slow disk costs the run time, and nothing else. Shortages that pass, such as a full
disk or too many open files, are waited for as well, and reported. Messages of this node are dropped meanwhile: they
would be stale later; and if it lasts the others are told to go on without it. The queue is bounded; beyond that the run
fails on this node, and is opened again.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from shoal.node.base.disk import Records, write_with_retries
from shoal.node.base.logs import warn
from shoal.node.base.pools import NOTES
from shoal.node.run.payload_sources import PayloadSources
from shoal.node.run.phases import PhaseLog
from shoal.node.run.timelines import LINGER, Timelines
from shoal.protocol.averaging.events import Behind
from shoal.protocol.base.effects import Blamed, Effect, Event, Persist, Send, Tell, Timer, Wake, Withdraw
from shoal.protocol.base.errors import LocalError, RemoteError, Shortage
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.shortages import in_words
from shoal.protocol.base.wire import Message
from shoal.protocol.member.presence import STEPS_ASIDE, Presence
from shoal.protocol.messages.averaging import Mean, Table
from shoal.protocol.messages.membership import Ack, AckFor, Gossip, Ping, PingFor, Summary
from shoal.protocol.net.bulk.backlog import LatePayload

Step = Callable[[float], list[Effect]]
_Key = tuple[int, int, int, Digest]  # of a mean
Outlet = Callable[[PeerId, Message, LatePayload | None], None]

AGAIN = 1.0  # seconds until a timer fires again whose step a peer's mistake has ended
MEANS_AT_ONCE = 64 << 20  # bytes that one visit to the disk writes, or a record more
RESULTS_AT_ONCE = 1 << 20  # fewer, as there is time, and there may be others for whom there is none
MOST_WAITING = 10_000  # effects that wait for a record; beyond it nothing to be sent is kept, beyond twice nothing
PARTING = 5.0  # seconds that a record is waited for once the run is about to be closed
OF_WHO_IS_THERE = (Ping, Ack, PingFor, AckFor, Gossip, Summary)

log = logging.getLogger(__name__)


class Driver:
    """Runs one member on the real network, clock and disk."""

    def __init__(
        self,
        member: Presence,
        folder: Path,
        store: Records | None,
        sources: PayloadSources,
        send: Outlet,
        on_event: Callable[[Event], None],
        on_failure: Callable[[Exception], None],
        kept: Sequence[tuple[int, str]] | None = None,
    ) -> None:
        """`kept` are the timelines of an earlier life, if they were read already: in a thread, as a disk may hang."""
        self.member = member
        self.phases = PhaseLog()
        self.timelines = Timelines(member.me, folder, NOTES.offer, kept)
        self._troubles: dict[str, str] = {}  # why a record of this kind cannot be written just now
        self._steps_aside: asyncio.TimerHandle | None = None  # while there are any
        self._folder = folder
        self._store = store
        self._sources = sources
        self._send = send
        self._on_event = on_event
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._effects: deque[Effect] = deque()
        self._draining = False
        self._means = _Writer(self._put_means, MEANS_AT_ONCE)  # for which later records wait
        self._unwritten: dict[_Key, list[Send]] = {}  # means that are to be written, and whom they are to go to then
        self._results = _Writer(self._put_results, RESULTS_AT_ONCE)  # which begins when a result is applied
        self._writing: asyncio.Task[None] | None = None  # of a record, which the effects that wait come after
        self._limit: asyncio.Timeout | None = None  # of what is being written
        self._is_ending = False
        self._closed = False

    @property
    def trouble(self) -> str:
        """Why a record cannot be written just now; empty: all can be."""
        return next(iter(self._troubles.values()), "")

    def now(self) -> float:
        """The clock that the cores see."""
        return self._loop.time()

    def command(self, step: Step) -> None:
        """Give the member a command, as `lambda now: member.submit(now, ...)`; carry out what follows from it."""
        try:
            self._take(step)
        except RemoteError as error:
            _blame(error)

    def receive(self, sender: PeerId, message: Message) -> None:
        """A message of this run; RemoteError if it is bad, and then nothing has changed."""
        self._take(lambda now: self._received(now, sender, message))

    def left(self, to: PeerId, message: Message, sent: bool) -> None:
        """A payload no longer waits on this node: it was written to the network, or dropped."""
        now = self.now()
        if sent:
            self.timelines.sent(now, to, message)
        self.member.left(now, to, message, sent)

    def link(self, peer: PeerId, up: bool) -> None:
        """A connection was made or lost."""
        member = self.member
        self.command(lambda now: member.link_up(now, peer) if up else member.link_lost(now, peer))

    def ended(self, peer: PeerId) -> None:
        """The process of a peer, with which a connection was lost, is there no more."""
        self.command(lambda now: self.member.ended(now, peer))

    def move(self, addresses: tuple[str, ...]) -> None:
        """We can be reached elsewhere."""
        self.command(lambda now: self.member.membership.set_addresses(now, addresses))

    def end(self) -> None:
        """The run is about to be closed: a record that cannot be written now is not waited for, or not for long."""
        self._is_ending = True
        if self._limit is not None:
            self._limit.reschedule(self.now() + PARTING)

    async def settled(self) -> None:
        """Return when all records are on disk, and what follows them has been done."""
        while self._writing is not None:
            await asyncio.wait([self._writing])
        self._results.begin()
        await self._means.written()
        await self._results.written()

    def results_written(self) -> asyncio.Future[bool]:
        """Whether the means of all results that were told until now come to the disk; done once that is known."""
        return self._results.written()

    def close(self) -> None:
        """Nothing happens any more."""
        self._closed = True
        self._effects.clear()
        self._unwritten.clear()
        self.timelines.keep(self.now())

    def _take(self, step: Step) -> None:
        if self._closed:
            return
        try:
            now = self.now()
            for effect in step(now):
                if self._writing is not None and _waits_for_no_record(effect):
                    self._carry_out(effect)
                elif isinstance(effect, Send) and self._is_silent():
                    self._drop(effect)
                else:
                    self._keep(effect)
            self._observe(now)
            if not self._draining:
                self._drain()
                if not self.member.is_applying:
                    self._results.begin()
        except RemoteError:
            raise
        except Exception as error:
            self._fail(error)

    def _keep(self, effect: Effect) -> None:
        """Have it carried out in its turn; Shortage if too much waits for the disk already."""
        if self._writing is not None and len(self._effects) >= 2 * MOST_WAITING:
            raise Shortage(
                f"the disk of {self._folder} does not answer, and too much waits for it here", code="disk-silent"
            )
        self._effects.append(effect)

    def _is_silent(self) -> bool:
        """Whether nothing more is to wait for the record that is being written."""
        return self._writing is not None and (bool(self.trouble) or len(self._effects) >= MOST_WAITING)

    def _drop(self, send: Send) -> None:
        if send.message.bulk:
            self.left(send.to, send.message, sent=False)

    def _received(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        effects = self.member.receive(now, sender, message)
        self.timelines.received(now, sender, message)
        return effects

    def _observe(self, now: float) -> None:
        phase, base = self.member.phase, self.member.base_round
        self.phases.observe(now, phase, self.member.waiting_for)
        if self.timelines.observe(now, phase, base + 1 if base is not None else 0, self.phases):
            timelines, clock = self.timelines, self._loop.time
            self._loop.call_later(LINGER, lambda: timelines.keep(clock()))

    def _drain(self) -> None:
        self._draining = True
        try:
            while self._effects and self._writing is None:
                self._carry_out(self._effects.popleft())
        finally:
            self._draining = False

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(message=Mean() as mean) if (waiting := self._unwritten.get(_key(mean))) is not None:
                waiting.append(effect)
            case Send(to, message, is_late):
                if not message.bulk:
                    self.timelines.sent(self.now(), to, message)
                self._send(to, message, self._sources.late(message) if is_late else None)
            case Withdraw(part, round):
                self._sources.withdraw(part, round)
            case Wake(after, timer):
                self._loop.call_later(after, _fire, weakref.ref(self), timer)
            case Tell(event):
                self.timelines.told(self.now(), event)
                self._on_event(event)
            case Persist("means", record):
                if isinstance(record, Mean):
                    self._unwritten.setdefault(_key(record), [])
                self._means.take(effect)
                self._means.begin()
            case Persist("result"):
                self._results.take(effect)
            case Persist("switch"):
                self._results.drop()  # they are of the branch that we leave
                self._writing = self._loop.create_task(self._write(effect))
            case Persist():
                self._writing = self._loop.create_task(self._write(effect))

    async def _write(self, effect: Persist) -> None:
        """Have a record on disk, however long that takes, and go on with what waits for it."""
        try:
            async with asyncio.timeout(PARTING if self._is_ending else None) as self._limit:
                await self._means.written()
                if effect.name == "switch":
                    await self._results.written()
                if not self._closed:  # as one of our means could not be written
                    await self._put([effect])
        except TimeoutError:
            self._fail(
                LocalError(
                    f"{effect.name} has not been written to {self._folder} in {PARTING:g} s: its disk does not answer",
                    code="disk-silent",
                )
            )
        finally:
            self._limit = self._writing = None
        self.command(lambda now: [])

    async def _put_means(self, effects: list[Persist]) -> None:
        await self._put(effects)
        try:  # at once, and not after a vote that is being written
            for mean in (effect.record for effect in effects if isinstance(effect.record, Mean)):
                for send in self._unwritten.pop(_key(mean), []):
                    if not self._closed:
                        self._carry_out(send)
        except Exception as error:
            self._fail(error)

    async def _put_results(self, effects: list[Persist]) -> None:
        await self._put(effects)
        for round in [effect.record.round for effect in effects if isinstance(effect.record, Table)]:
            self.command(partial(self.member.kept, round=round))

    async def _put(self, effects: list[Persist]) -> None:
        """Have records of one name on disk, in their order."""
        store, name, waiting = self._store, effects[0].name, deque(effects)
        assert store is not None

        def write() -> None:
            while waiting:
                store.put(name, waiting[0].record)
                waiting.popleft()

        try:
            complain = partial(self._complain, name)
            await write_with_retries(write, complain, lambda: self._is_ending or self._closed)
        except Exception as error:
            self._fail(error)
        self._troubles.pop(name, None)
        if not self._troubles and self._steps_aside is not None:
            self._steps_aside.cancel()
            self._steps_aside = None
            self.command(self.member.come_back)

    def _complain(self, name: str, error: Exception) -> None:
        cause = error.__cause__ or error
        words = f"what must not be forgotten over a crash cannot be written to {self._folder}: {in_words(cause)}"
        if not self.trouble:
            warn(log, "record-waits", f"{words}; this node is silent in the run until it can, and tries again")
        self._troubles[name] = words
        if self._steps_aside is None:
            self._steps_aside = self._loop.call_later(STEPS_ASIDE, self.command, self.member.step_aside)

    def _fail(self, error: Exception) -> None:
        self._means.drop()
        self._results.drop()
        if not self._closed:
            self.close()
            self._on_failure(error)

    def _fire(self, timer: Timer) -> None:
        try:
            self._take(lambda now: self.member.fire(now, timer))
        except RemoteError as error:
            _blame(error)
            self._loop.call_later(AGAIN, _fire, weakref.ref(self), timer)  # what it was to set going must not be lost


class _Writer:
    """Has records written one after the other, beside what goes on: so many bytes of those that wait at once.

    Each visit to a thread costs a turn of the event loop, which takes many times as long as the writing while vectors
    come and go.
    """

    def __init__(self, write: Callable[[list[Persist]], Awaitable[None]], at_once: int) -> None:
        self._write, self._at_once = write, at_once
        self._waiting: deque[Persist | asyncio.Future[bool]] = deque()
        self._task: asyncio.Task[None] | None = None

    def take(self, effect: Persist) -> None:
        """Write this record, too, after `begin`."""
        self._waiting.append(effect)

    def begin(self) -> None:
        """Write what waits."""
        if self._waiting and self._task is None:
            self._task = asyncio.create_task(self._write_all())

    def drop(self) -> None:
        """Write nothing more."""
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            _fulfil(each, False)

    def written(self) -> asyncio.Future[bool]:
        """Done once all that was taken before is written; with False if it is dropped meanwhile."""
        written = asyncio.get_running_loop().create_future()
        if self._waiting or self._task is not None:
            self._waiting.append(written)
        else:
            written.set_result(True)
        return written

    async def _write_all(self) -> None:
        while self._waiting:
            if batch := self._batch():
                await self._write(batch)
            else:
                _fulfil(self._waiting.popleft(), True)
        self._task = None

    def _batch(self) -> list[Persist]:
        """What is written next; nothing if somebody waits for what was written until now."""
        batch, size = list[Persist](), 0
        while self._waiting and size < self._at_once and isinstance(effect := self._waiting[0], Persist):
            size += len(effect.record.payload) if isinstance(effect.record, Mean) else 0
            batch.append(effect)
            self._waiting.popleft()
        return batch


def _fulfil(each: Persist | asyncio.Future[bool], is_written: bool) -> None:
    """Tell who waits, if this is one, and it still does."""
    if isinstance(each, asyncio.Future) and not each.done():
        each.set_result(is_written)


def _key(mean: Mean) -> _Key:
    return mean.part, mean.round, mean.chunk, mean.made.hash


def _fire(driver: weakref.ref[Driver], timer: Timer) -> None:
    """A run that was left is kept by no timer that is still to come: it holds as much as seven models."""
    if (there := driver()) is not None:
        there._fire(timer)


def _waits_for_no_record(effect: Effect) -> bool:
    """Whether it says nothing of what we have voted for, and nothing follows from it here that does."""
    match effect:
        case Wake() | Tell(Behind() | Blamed()):
            return True
        case Send(message=message):
            return isinstance(message, OF_WHO_IS_THERE)
    return False


def _blame(error: RemoteError) -> None:
    warn(log, "peer-blamed", str(error))
