"""The payloads that wait for a carrier to one peer: threads wait for the next one, the loop looks.

Rules:
- Of each flow the first in is the first out. Contributions go before means: others wait for them to make theirs.
- What is queued is bounded in bytes: payloads that were encoded count with their size, the others with none, as they
  hold no memory before their turn.
- What a broken carrier had in hand comes back to the front, with all that nobody has said to have arrived.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.wire import Payload
from shoal.protocol.messages.bulk import Flow

TRIES = 4  # carriers that a payload may be lost with
UNWANTED = TransportError("nobody wants it any more")

Packed = tuple[bytes, bytes, Payload]  # prefix, head, payload


@dataclass(slots=True, eq=False)
class QueuedPayload:
    """A payload to be sent: made by `pack`, in any thread. In the loop, `sent(bytes)` or `lost(reason)` follows."""

    flow: Flow
    size: int  # bytes that it holds while it waits
    pack: Callable[[], Packed]
    sent: Callable[[int], None]
    lost: Callable[[TransportError], None]
    is_wanted: Callable[[], bool] = lambda: True  # asked before it is packed, in any thread; if not, it is lost
    was_sent: bool = False  # that was said already: it goes once more, as it may not have arrived
    tries: int = 0  # carriers that broke with it


class Backlog:
    """Payloads for one peer, in two queues; any number of threads take from it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[Flow, deque[QueuedPayload]] = {flow: deque() for flow in (Flow.SCATTER, Flow.GATHER)}
        self._size = 0
        self._has_more = threading.Condition()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, queued: QueuedPayload) -> bool:
        """Whether there was room for it."""
        with self._has_more:
            if self._size + queued.size > self._limit:
                return False
            self._waiting[queued.flow].append(queued)
            self._size += queued.size
            self._has_more.notify_all()  # not each of them may take it
        return True

    def put_back(self, payloads: list[QueuedPayload]) -> None:
        """They are next again, in this order, and there is always room for them."""
        with self._has_more:
            for each in reversed(payloads):
                self._waiting[each.flow].appendleft(each)
            self._size += sum(each.size for each in payloads)
            self._has_more.notify_all()

    def take_now(self, flow: Flow) -> QueuedPayload | None:
        """The next one of a flow, if there is one."""
        with self._has_more:
            return self._take([flow])

    def take(
        self, flows: Callable[[], Collection[Flow] | None], rest: Callable[[], None] = lambda: None
    ) -> QueuedPayload | None:
        """The next one of these, as soon as there is one; None once `flows` are None. `wake` has us look again.

        `rest` is called before we wait.
        """
        with self._has_more:
            while (wanted := flows()) is not None:
                if (queued := self._take(wanted)) is not None:
                    return queued
                rest()
                self._has_more.wait()
        return None

    def wake(self) -> None:
        """Have all who wait look whether they still want one."""
        with self._has_more:
            self._has_more.notify_all()

    def clear(self) -> list[QueuedPayload]:
        """All that waited, and waits here no more."""
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
