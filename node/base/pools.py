"""The threads of a node and of what it serves: a pool for each purpose, so that slow work of one kind delays no other.

A loop hands its slow work to a pool. Were there one for all, as asyncio's own is, a disk, a name server or a library
that hangs would soon have taken all threads, and what a round needs would wait behind it.

At the end of the process running work is waited for, for PARTING seconds in all: what hangs must not hold it up.
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
MANY = 64  # pieces of work that are not done, beyond which no more are offered

log = logging.getLogger(__name__)


class Pool:
    """At most `most` threads, begun as they are needed; work is begun in the order in which it is given."""

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._work = SimpleQueue[tuple["Future[Any]", Callable[[], Any]]]()
        self._lock = threading.Lock()
        self._threads = 0
        self._open = 0  # pieces of work that are not done
        self._done = threading.Condition(self._lock)
        self._has_refused = False
        _POOLS.append(self)

    async def run(self, function: Callable[..., T], *args: Any, **named: Any) -> T:
        """What `function` returns or raises, in one of our threads."""
        return await asyncio.wrap_future(self.begin(partial(function, *args, **named)))

    def begin(self, function: Callable[[], T]) -> Future[T]:
        """The same for who does not wait, or not in a loop."""
        future: Future[T] = Future()
        with self._lock:
            if self._threads < self._most and self._threads <= self._open:
                self._start()
            self._open += 1
        self._work.put((future, function))
        return future

    def offer(self, function: Callable[[], object]) -> None:
        """The same for what may be left undone: it is, and the log says so, while MANY pieces are not done."""
        has_refused, self._has_refused = self._has_refused, self._open >= MANY
        if not self._has_refused:
            self.begin(function)
        elif not has_refused:
            log.warning("a disk does not answer: %s are left out until it does", self._name)

    def join(self, limit: float) -> bool:
        """Wait until all is done, for so many seconds at most; whether it is."""
        due = time.monotonic() + limit
        with self._lock:
            return self._done.wait_for(lambda: not self._open, max(0.0, due - time.monotonic()))

    def _start(self) -> None:
        thread = threading.Thread(target=self._serve, name=f"{self._name}-{self._threads}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads are to be had: those that are there do it, one after the other
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
def _part() -> None:
    due = time.monotonic() + PARTING
    for pool in _POOLS:
        pool.join(due - time.monotonic())


ROUNDS = Pool("rounds", 8)  # what a round needs: sums, outer steps, hashes, vectors for the worker
RECORDS = Pool("records", 4)  # what must be on disk before we go on: votes, which runs we are in
NOTES = Pool("notes", 1)  # small files that nobody waits for, in their order: peers, timelines, today's volume
DISK = Pool("disk", 8)  # large files: checkpoints, texts, experts
SOCKETS = Pool("sockets", 1)  # where processes of this machine connect: made and removed, in their order
ANSWERS = Pool("answers", 8)  # what an answer of `shoal serve` needs
LONG = Pool("long", 8)  # what may take minutes: libraries, models, tokenizers, other people's code
