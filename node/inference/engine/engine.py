"""Runs a batch in a thread, with an asyncio interface.

Rules:
- Only the thread touches the batch and the scorer; only the event loop touches a ticket's deltas. They share the queue
  of waiting sequences, under a lock; one call into the loop per step; and two counts per ticket, of deltas given by the
  thread and of deltas taken by the loop: plain integers with one writer each.
- Both queues are bounded: the waiting sequences (`Busy` beyond that), and the deltas of each ticket. A full ticket
  keeps its slots and is skipped; its reader must take deltas, or cancel, in bounded time (http/answers.py does).
- Every submission ends with `cancel`; slots that it still has are free before the next step.
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
from shoal.node.inference.engine.batch import CHUNK, Batch, Output
from shoal.node.inference.engine.sequence import Delta, Job
from shoal.node.inference.scorer import Scorer
from shoal.node.training.data.vocabulary import Vocabulary
from shoal.protocol.base.errors import LocalError, ShoalError

ROOM = 64  # deltas that may wait for a reader
WAITING = 128  # sequences that wait for a slot
LAST_STEP = 30.0  # seconds that `stop` waits for the present step
SMOOTHING = 0.2  # weight of the last sequence in the moving average of how long sequences take
LONGEST_RETRY = 60  # seconds

log = logging.getLogger("shoal.serve")


class Ticket:
    """The deltas of a request's sequences, for one reader in the loop; a place is a sequence's index in the request."""

    def __init__(self, sequences: int, wake: Callable[[], None], room: int = ROOM) -> None:
        """`wake` wakes the engine's thread."""
        self._open = sequences
        self._wake, self.room = wake, room
        self._came: deque[tuple[int, Delta | ShoalError]] = deque()
        self._news = asyncio.Event()
        self.is_cancelled = False  # written by the loop
        self.taken = 0  # by the loop
        self.given = 0  # by the thread

    async def deltas(self) -> AsyncIterator[list[tuple[int, Delta]]]:
        """Yield lists of (place, delta) as they come, until all sequences have finished.

        Raises the ShoalError of a sequence that has failed.
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
                self._wake()
            yield [(place, each) for place, each in came if isinstance(each, Delta)]
            if error := next((each for _, each in came if isinstance(each, ShoalError)), None):
                raise error

    def put(self, place: int, content: Delta | ShoalError) -> None:
        """Called in the loop, by the engine."""
        if isinstance(content, ShoalError) or content.finish is not None:
            self._open -= 1
        self._came.append((place, content))
        self._news.set()

    def cancel(self) -> None:
        """The reader wants nothing more; called in the loop, also after the last delta."""
        self.is_cancelled = True
        self._wake()


class TicketReader:
    """The Reader of one sequence of a ticket; used by the engine's thread."""

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

    code = "ending"


STOPPED = Stopping("the server is stopping")


class Busy(Exception):
    """Too many sequences wait already; the client may try again in `retry_after` seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"too many requests are waiting; try again in {retry_after} s")
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Load:
    """The engine's present load, and its totals since the start."""

    slots: int
    busy: int  # slots in use
    waiting: int  # sequences
    tokens: int  # written
    finished: int  # sequences that were written to their end
    broken: int  # sequences that were cancelled, or failed


class Engine:
    """Writes many texts at once, in a thread of its own. Created and called in the loop."""

    def __init__(
        self, scorer: Scorer, vocabulary: Vocabulary, *, waiting: int = WAITING, room: int = ROOM, chunk: int = CHUNK
    ) -> None:
        self._scorer, self._batch = scorer, Batch(scorer, vocabulary, chunk)
        self.capacity, self._room = scorer.slots + waiting, room  # `capacity`: of slots and queue together
        self._waiting: deque[tuple[Job, TicketReader]] = deque()
        self._changed = threading.Condition()  # guards `_waiting`, `_stopping` and `_is_woken`
        self._stopping = False
        self._is_woken = True  # whether something has changed since the thread last looked
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._seconds = 1.0  # moving average of the time that a sequence spends in its slot
        self._tokens = self._joined = self._finished = 0
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> Ticket:
        """Write these texts, each as soon as it gets a slot. `Busy` if too many wait; LocalError once stopped."""
        ticket = Ticket(len(jobs), self.wake, self._room)
        now = time.monotonic()
        with self._changed:
            if self._stopping:
                raise STOPPED
            here = len(self._waiting) + self._batch.busy + len(jobs)
            if here > self.capacity:
                raise Busy(self._retry_after())
            self._waiting += [(job, TicketReader(ticket, place, now)) for place, job in enumerate(jobs)]
        self.wake()
        return ticket

    def wake(self) -> None:
        """The thread may have something to do: a reader has gone or has room again, or a sequence waits."""
        with self._changed:
            self._is_woken = True
            self._changed.notify()

    def load(self) -> Load:
        """The present load."""
        busy, joined = self._batch.busy, self._joined
        broken = joined - self._finished - busy
        return Load(self._scorer.slots, busy, len(self._waiting), self._tokens, self._finished, max(0, broken))

    async def stop(self) -> None:
        """End all sequences with STOPPED, and the thread after its present step."""
        with self._changed:
            self._stopping = True
        self.wake()
        await LONG.run(self._thread.join, LAST_STEP)
        if self._thread.is_alive():
            log.warning(
                "the model is still at its last step after %.0f s: it is left alone",
                LAST_STEP,
                extra={"code": "model-stuck"},
            )

    # -- the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._wait():
            self._post(self._batch.step())
        with self._changed:
            rest = [Output(reader, STOPPED) for _, reader in self._waiting]
            self._waiting.clear()
        self._post([*rest, *self._batch.abandon(STOPPED)])

    def _wait(self) -> bool:
        """Wait until there is something to do, and fill the free slots. False if the engine stops."""
        with self._changed:
            while not (self._is_woken or self._stopping or self._batch.has_work or self._can_join):
                self._changed.wait()
            self._is_woken = False
            self._waiting = deque(each for each in self._waiting if not each[1].is_gone)
            while self._can_join:
                job, reader = self._waiting.popleft()
                reader.began = time.monotonic()
                self._joined += 1
                self._batch.join(job, reader)
            return not self._stopping

    @property
    def _can_join(self) -> bool:
        return bool(self._waiting and self._batch.free)

    def _post(self, outputs: list[Output]) -> None:
        """Count the outputs, and hand them to their readers by one call into the loop."""
        for each in outputs:
            assert isinstance(each.reader, TicketReader)
            each.reader.ticket.given += 1
            if isinstance(each.content, Delta):
                self._tokens += 1
                if each.content.finish is not None:
                    self._finished += 1
                    self._seconds += SMOOTHING * (time.monotonic() - each.reader.began - self._seconds)
        if outputs:
            try:
                self._loop.call_soon_threadsafe(_deliver, outputs)
            except RuntimeError:  # the loop is closed: nobody reads any more
                log.debug("%d deltas came after the end", len(outputs))

    def _retry_after(self) -> int:
        """Seconds until some waiting sequences will have slots, by how long sequences have taken."""
        ahead = len(self._waiting) / self._scorer.slots * self._seconds
        return min(LONGEST_RETRY, max(1, math.ceil(ahead)))


def _deliver(outputs: list[Output]) -> None:
    for each in outputs:
        assert isinstance(each.reader, TicketReader)
        each.reader.ticket.put(each.reader.place, each.content)
