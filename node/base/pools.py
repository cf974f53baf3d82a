"""Thread pools for blocking work, one for each purpose, so that slow work of one kind delays no other.

With a single pool, such as asyncio's own, a disk, a name server or a library that hangs would soon occupy all threads,
and the work of a round would have to wait.

At its end the process waits for running work, for PARTING seconds in all, so that a call that hangs does not keep it.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

PARTING = 10.0  # seconds, for all pools together
MAX_OPEN = 64  # unfinished pieces of work, beyond which `offer` drops more

log = logging.getLogger(__name__)


class Pool:
    """A pool of at most `most` threads, started as they are needed; work is begun in the order of the calls."""

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._work = SimpleQueue[tuple["Future[Any]", Callable[[], Any]]]()
        self._lock = threading.Lock()
        self._threads = 0
        self._open = 0  # unfinished pieces of work
        self._done = threading.Condition(self._lock)
        self._has_refused = False
        _POOLS.append(self)

    async def run(self, function: Callable[..., T], *args: Any, **named: Any) -> T:
        """Call `function` in a thread of the pool, and return or raise what it does."""
        return await asyncio.wrap_future(self.begin(partial(function, *args, **named)))

    def begin(self, function: Callable[[], T]) -> Future[T]:
        """Start `function` in a thread of the pool; for callers that do not wait, or have no event loop."""
        future: Future[T] = Future()
        with self._lock:
            if self._threads < self._most and self._threads <= self._open:
                self._start()
            self._open += 1
        self._work.put((future, function))
        return future

    def offer(self, function: Callable[[], object]) -> None:
        """Start optional work; while MAX_OPEN pieces are unfinished it is dropped, and the log says so once."""
        has_refused, self._has_refused = self._has_refused, self._open >= MAX_OPEN
        if not self._has_refused:
            self.begin(function)
        elif not has_refused:
            log.warning(
                "a disk does not answer: %s are left out until it does", self._name, extra={"code": "disk-silent"}
            )

    def join(self, limit: float) -> bool:
        """Wait until all work is done, for `limit` seconds at most; False if some is unfinished."""
        due = time.monotonic() + limit
        with self._lock:
            return self._done.wait_for(lambda: not self._open, max(0.0, due - time.monotonic()))

    def _start(self) -> None:
        thread = threading.Thread(target=self._serve, name=f"{self._name}-{self._threads}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system gives us no more threads: the existing ones do the work
            if not self._threads:
                raise
        else:
            self._threads += 1

    def _serve(self) -> None:
        while True:
            future, function = self._work.get()
            if not future.set_running_or_notify_cancel():
                del function
            else:
                try:
                    result = function()
                except BaseException as error:  # raised where the result is awaited
                    del function
                    future.set_exception(error)
                else:
                    del function  # before the result is known: what the work held is free by then
                    future.set_result(result)
                    del result
            del future  # else it would live until the next work comes
            with self._lock:
                self._open -= 1
                self._done.notify_all()


_POOLS: list[Pool] = []


@atexit.register
def _join_all() -> None:
    due = time.monotonic() + PARTING
    for pool in _POOLS:
        pool.join(due - time.monotonic())


ROUNDS = Pool("rounds", 8)  # the work of a round: sums, outer steps, hashes, vectors for the worker
RECORDS = Pool("records", 4)  # what must be on disk before we continue: votes, the list of our runs
NOTES = Pool("notes", 1)  # small files that nobody waits for, one after the other: peers, timelines, today's volume
MACHINE = Pool("machine", 1)  # what the system says of this machine, which must not wait for a disk
DISK = Pool("disk", 8)  # large files: checkpoints, texts, experts
DOWNLOADS = Pool("downloads", 1)  # the chunks of a state that comes, one after the other
SOCKETS = Pool("sockets", 1)  # creating and removing Unix sockets, one after the other
ANSWERS = Pool("answers", 8)  # the answers of `shoal serve`
LONG = Pool("long", 8)  # what may take minutes: libraries, models, tokenizers, foreign code
