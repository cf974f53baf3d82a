"""The queue of payloads for one peer, from which its sockets' threads and its streams take.

Rules:
- Each flow is first in, first out. Contributions go before means, as others wait for them to compute their means.
- The queue is bounded in bytes: payloads that are encoded already count with their size, the others with nothing, as
  they hold no memory before their turn.
- When a socket breaks, the payload in its hands and all unacknowledged ones come back to the front.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.wire import Payload
from shoal.protocol.messages.bulk import Flow

TRIES = 4  # sockets or streams that may break with a payload before it is dropped
UNWANTED = TransportError("nobody wants it any more")

Packed = tuple[bytes, bytes, Payload]  # prefix, head, payload


@dataclass(frozen=True, slots=True)
class LatePayload:
    """A payload that is made when its turn comes. Both functions are called in any thread."""

    make: Callable[[], Payload]
    is_wanted: Callable[[], bool] = lambda: True  # asked before; if False, it is lost


@dataclass(slots=True, eq=False)
class QueuedPayload:
    """A payload to be sent: `pack` makes it, in any thread; `sent(bytes)` or `lost(reason)` follows in the loop."""

    flow: Flow
    size: int  # bytes of memory that it holds while it waits
    pack: Callable[[], Packed]
    sent: Callable[[int], None]
    lost: Callable[[TransportError], None]
    is_wanted: Callable[[], bool] = lambda: True  # asked before `pack`, in any thread; if False, it is lost
    was_sent: bool = False  # `sent` was called already; it is sent once more, as it may not have arrived
    tries: int = 0  # sockets or streams that broke with it


class Backlog:
    """The waiting payloads for one peer, a queue for each flow. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[Flow, deque[QueuedPayload]] = {flow: deque() for flow in (Flow.SCATTER, Flow.GATHER)}
        self._size = 0
        self._has_more = threading.Condition()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, queued: QueuedPayload) -> bool:
        """Queue a payload; False if there is no room for it."""
        with self._has_more:
            if self._size + queued.size > self._limit:
                return False
            self._waiting[queued.flow].append(queued)
            self._size += queued.size
            self._has_more.notify_all()  # the first that wakes may not want this flow
        return True

    def put_back(self, payloads: list[QueuedPayload]) -> None:
        """Put these at the front again, in this order, whether or not there is room."""
        with self._has_more:
            for each in reversed(payloads):
                self._waiting[each.flow].appendleft(each)
            self._size += sum(each.size for each in payloads)
            self._has_more.notify_all()

    def take_now(self, flow: Flow) -> QueuedPayload | None:
        """The next payload of a flow, if there is one now."""
        with self._has_more:
            return self._take([flow])

    def take(
        self, flows: Callable[[], Collection[Flow] | None], rest: Callable[[], None] = lambda: None
    ) -> QueuedPayload | None:
        """Wait for the next payload of the flows that `flows()` returns; None once it returns None.

        `flows` is asked again after `wake`; `rest` is called before each wait.
        """
        with self._has_more:
            while (wanted := flows()) is not None:
                if (queued := self._take(wanted)) is not None:
                    return queued
                rest()
                self._has_more.wait()
        return None

    def wake(self) -> None:
        """Have all threads that wait in `take` ask their `flows` again."""
        with self._has_more:
            self._has_more.notify_all()

    def clear(self) -> list[QueuedPayload]:
        """Remove and return all waiting payloads."""
        with self._has_more:
            dropped, self._size = [each for waiting in self._waiting.values() for each in waiting], 0
            for waiting in self._waiting.values():
                waiting.clear()
        return dropped

    def _take(self, flows: Collection[Flow]) -> QueuedPayload | None:
        for flow, waiting in self._waiting.items():
            if waiting and flow in flows:
                queued = waiting.popleft()
                self._size -= queued.size
                return queued
        return None
