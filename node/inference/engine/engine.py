"""A thread around a batch, asyncio in front of it.

Rules:
- The thread alone touches the batch and the scorer; the loop alone touches what tickets hold. Between them go the queue
  of those who wait, under a lock, one call into the loop per step, and each ticket's two counts, of what the thread has
  given and of what the loop has taken: plain numbers with one writer each.
- Queues are bounded: of waiting sequences (`Busy` beyond it), and of each ticket's deltas. A ticket that is full keeps
  its slots and is passed over; whoever reads must take or cancel in a bounded time (http/answers.py does).
- Whoever submits ends with `cancel`; what is left of its slots is free before the next step.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from shoal.node.base.pools import LONG
from shoal.node.inference.engine.batch import CHUNK, Batch, Told
from shoal.node.inference.engine.sequence import Delta, Job
from shoal.node.inference.scorer import Scorer
from shoal.node.training.data.vocabulary import Vocabulary
from shoal.protocol.base.errors import LocalError, ShoalError

ROOM = 64  # deltas that a reader may lag behind
WAITING = 128  # sequences that wait for a slot
LAST_STEP = 30.0  # seconds that a stop waits for the step that is under way
NEWEST = 0.2  # weight of the last sequence in the mean of how long they take
LONGEST_RETRY = 60  # seconds

log = logging.getLogger("shoal.serve")


class Ticket:
    """The deltas of a request's sequences, by their places. For one reader, in the loop."""

    def __init__(self, sequences: int, look_again: Callable[[], None], room: int = ROOM) -> None:
        """`look_again` wakes the thread."""
        self._open = sequences
        self._look_again, self.room = look_again, room
        self._came: deque[tuple[int, Delta | ShoalError]] = deque()
        self._news = asyncio.Event()
        self.is_cancelled = False  # written by the loop
        self.taken = 0  # by the loop
        self.given = 0  # by the thread

    async def deltas(self) -> AsyncIterator[list[tuple[int, Delta]]]:
        """(place, delta) of all that has come since, until all sequences have finished.

        Raises the ShoalError that has ended one of them.
        """
        while self._open or self._came:
            while not self._came:
                self._news.clear()
                await self._news.wait()
            came = list(self._came)
            self._came.clear()
            before = self.taken
            self.taken += len(came)
            if self.given - before >= self.room:  # read after the line above: if the thread saw us full, we see it too
                self._look_again()
            yield [(place, what) for place, what in came if isinstance(what, Delta)]
            if error := next((what for _, what in came if isinstance(what, ShoalError)), None):
                raise error

    def tell(self, place: int, what: Delta | ShoalError) -> None:
        """Called in the loop, by the engine."""
        if isinstance(what, ShoalError) or what.finish is not None:
            self._open -= 1
        self._came.append((place, what))
        self._news.set()

    def cancel(self) -> None:
        """Nothing more is wanted; called in the loop, also when all has come."""
        self.is_cancelled = True
        self._look_again()


class Seat:
    """One sequence's place in a ticket, as the batch sees it (a Reader); of the engine's thread."""

    def __init__(self, ticket: Ticket, place: int, began: float) -> None:
        self.ticket, self.place, self.began = ticket, place, began

    @property
    def is_gone(self) -> bool:
        """See Reader."""
        return self.ticket.is_cancelled

    @property
    def has_room(self) -> bool:
        """See Reader."""
        return self.ticket.given - self.ticket.taken < self.ticket.room


class Stopping(LocalError):
    """The server has been told to stop."""


STOPPED = Stopping("the server is stopping")


class Busy(Exception):
    """Too many sequences wait already; a place may be free in `retry_after` seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"too many requests are waiting; try again in {retry_after} s")
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Load:
    """How much there is to do, and how much was done since the start."""

    slots: int
    busy: int  # slots in use
    waiting: int  # sequences
    tokens: int  # written
    finished: int  # sequences that came to their end
    broken: int  # that did not: cancelled, or failed


class Engine:
    """Writes for many at once. Made and called in the loop; the thread is its own."""

    def __init__(
        self, scorer: Scorer, vocabulary: Vocabulary, *, waiting: int = WAITING, room: int = ROOM, chunk: int = CHUNK
    ) -> None:
        self._scorer, self._batch = scorer, Batch(scorer, vocabulary, chunk)
        self.most, self._room = scorer.slots + waiting, room  # sequences that are here at once
        self._waiting: deque[tuple[Job, Seat]] = deque()
        self._changed = threading.Condition()  # guards `_waiting`, `_stopping` and `_looks`
        self._stopping = False
        self._looks = True  # whether something has changed since the thread has looked
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._live, name="engine", daemon=True)
        self._seconds = 1.0  # that a sequence takes in its slot, on the average
        self._tokens = self._joined = self._finished = 0
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> Ticket:
        """Have them written, each as soon as it has a slot. `Busy` if too many wait; LocalError once stopped."""
        ticket = Ticket(len(jobs), self.look_again, self._room)
        now = time.monotonic()
        with self._changed:
            if self._stopping:
                raise STOPPED
            here = len(self._waiting) + self._batch.busy + len(jobs)
            if here > self.most:
                raise Busy(self._retry_after())
            self._waiting += [(job, Seat(ticket, place, now)) for place, job in enumerate(jobs)]
        self.look_again()
        return ticket

    def look_again(self) -> None:
        """A reader has gone or has made room, or somebody waits: the thread may have something to do."""
        with self._changed:
            self._looks = True
            self._changed.notify()

    def load(self) -> Load:
        """How it stands."""
        busy, joined = self._batch.busy, self._joined
        broken = joined - self._finished - busy
        return Load(self._scorer.slots, busy, len(self._waiting), self._tokens, self._finished, max(0, broken))

    async def stop(self) -> None:
        """Tell all readers that it is over, and end the thread once its step is done."""
        with self._changed:
            self._stopping = True
        self.look_again()
        await LONG.run(self._thread.join, LAST_STEP)
        if self._thread.is_alive():
            log.warning("the model is still at its last step after %.0f s: it is left alone", LAST_STEP)

    # -- the thread -----------------------------------------------------------------------------------------

    def _live(self) -> None:
        while self._wait():
            self._post(self._batch.step())
        with self._changed:
            rest = [Told(seat, STOPPED) for _, seat in self._waiting]
            self._waiting.clear()
        self._post([*rest, *self._batch.abandon(STOPPED)])

    def _wait(self) -> bool:
        """Until there is something to do; False if that is to end. Who waits gets the free slots."""
        with self._changed:
            while not (self._looks or self._stopping or self._batch.has_work or self._can_join):
                self._changed.wait()
            self._looks = False
            self._waiting = deque(each for each in self._waiting if not each[1].is_gone)
            while self._can_join:
                job, seat = self._waiting.popleft()
                seat.began = time.monotonic()
                self._joined += 1
                self._batch.join(job, seat)
            return not self._stopping

    @property
    def _can_join(self) -> bool:
        return bool(self._waiting and self._batch.free)

    def _post(self, told: list[Told]) -> None:
        """To their readers, by one call into the loop."""
        seats: list[tuple[Seat, Told]] = []
        for each in told:
            assert isinstance(each.reader, Seat)
            each.reader.ticket.given += 1
            seats.append((each.reader, each))
            if isinstance(each.what, Delta):
                self._tokens += 1
                if each.what.finish is not None:
                    self._finished += 1
                    self._seconds += NEWEST * (time.monotonic() - each.reader.began - self._seconds)
        if seats:
            try:
                self._loop.call_soon_threadsafe(_deliver, seats)
            except RuntimeError:  # the loop is closed: nobody reads any more
                log.debug("%d deltas came after the end", len(seats))

    def _retry_after(self) -> int:
        """When some of those who wait will be in slots, judging by how long sequences took."""
        ahead = len(self._waiting) / self._scorer.slots * self._seconds
        return min(LONGEST_RETRY, max(1, math.ceil(ahead)))


def _deliver(seats: list[tuple[Seat, Told]]) -> None:
    for seat, told in seats:
        seat.ticket.tell(seat.place, told.what)
