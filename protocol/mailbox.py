"""Messages that came too soon, kept until we are where they belong. Bounded, whoever sends what.

Of bytes the newest for each chunk is kept, up to a total; of everything else the last few from each sender, in the
order in which they came. What is dropped is not lost for good: the silent are reminded, and say it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from shoal.protocol.allreduce import Blamed
from shoal.protocol.effects import Effect, Tell
from shoal.protocol.errors import RemoteError
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.rounds import Contribution, Final
from shoal.protocol.wire import Message

MAX_SENDERS = 1024
MAX_CONTROL = 16  # from each sender
MAX_BYTES = 256 << 20  # of all chunks together


class Mailbox:
    """Mail for later."""

    def __init__(self) -> None:
        self._control: dict[PeerId, deque[Message]] = {}
        self._bulk: dict[tuple[PeerId, type, int], Contribution | Final] = {}
        self._bytes = 0

    def __repr__(self) -> str:
        return f"Mailbox(senders={len(self._control)}, chunks={len(self._bulk)}, bytes={self._bytes})"

    def keep(self, sender: PeerId, message: Message) -> None:
        """Put a message aside."""
        if isinstance(message, Contribution | Final):
            self._keep_bytes(sender, message)
        elif not message.bulk and (sender in self._control or len(self._control) < MAX_SENDERS):
            box = self._control.setdefault(sender, deque(maxlen=MAX_CONTROL))
            if message not in box:
                box.append(message)

    def empty(self) -> Iterator[tuple[PeerId, Message]]:
        """All that was kept, what steers the work before the bytes that it needs."""
        control, self._control = self._control, {}
        bulk, self._bulk, self._bytes = self._bulk, {}, 0
        yield from ((sender, message) for sender, box in control.items() for message in box)
        yield from ((sender, message) for (sender, _, _), message in bulk.items())

    def _keep_bytes(self, sender: PeerId, message: Contribution | Final) -> None:
        key = sender, type(message), message.chunk
        before = self._bulk.pop(key, None)
        self._bytes -= len(before.payload) if before is not None else 0
        if self._bytes + len(message.payload) <= MAX_BYTES:
            self._bulk[key] = message
            self._bytes += len(message.payload)


Receive = Callable[[float, PeerId, Message], list[Effect]]


def replayed(receive: Receive, now: float, sender: PeerId, message: Message) -> list[Effect]:
    """What follows from a message that was kept; if it is bad, only its sender is to blame, not who comes now."""
    try:
        return receive(now, sender, message)
    except RemoteError as error:
        return [Tell(Blamed(error.peer or sender, error.reason))]
