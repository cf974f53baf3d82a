"""Bandwidth of a peer's uplink, or of a relay: payloads leave one after the other, at so many bytes a second.

Control messages do not wait: in production they have a connection of their own. A payload counts as `PAYLOAD` bytes
more than it has here, so that a round takes as long as a real one, and costs the simulation no more.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from shoal.protocol.base.effects import Withdraw
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.averaging import Contribution
from shoal.protocol.messages.replicas import Chunk

PAYLOAD = 1 << 20


@dataclass(slots=True)
class Parcel:
    """A payload on its way to the network; `to` is None once nobody is there to receive it."""

    to: PeerId | None
    message: Message
    data: bytes
    is_wanted: bool = True


class Uplink:
    """First in, first out. The first parcel of the queue is on the wire."""

    def __init__(self, rate: float) -> None:
        self.rate = rate  # bytes per second; a change counts from the next parcel on
        self._queue: deque[Parcel] = deque()

    @property
    def waiting(self) -> list[Parcel]:
        """All parcels that have not left yet."""
        return list(self._queue)

    def put(self, parcel: Parcel) -> float | None:
        """Queue a parcel; the seconds that it takes, if it is the first."""
        self._queue.append(parcel)
        return self._seconds() if len(self._queue) == 1 else None

    def shift(self) -> tuple[Parcel, list[Parcel], float | None]:
        """Remove the first parcel, which has left.

        Returns it; the parcels that are dropped, as nobody wants them any more when their turn comes; and the seconds
        that the next one takes, if there is one.
        """
        first, unwanted = self._queue.popleft(), list[Parcel]()
        while self._queue and not self._queue[0].is_wanted:
            unwanted.append(self._queue.popleft())
        return first, unwanted, self._seconds() if self._queue else None

    def withdraw(self, what: Withdraw) -> None:
        """Contributions to a round are wanted no more."""
        for parcel in self._queue:
            match parcel.message:
                case Chunk(round=what.round) | Contribution(part=what.part, round=what.round):
                    parcel.is_wanted = False

    def drop(self, to: PeerId) -> list[Message]:
        """The connection with `to` is lost: drop what waits for it. Returns these messages."""
        gone = [parcel for parcel in self._queue if parcel.to == to]
        for parcel in gone:
            parcel.to = None
        self._queue = deque(parcel for at, parcel in enumerate(self._queue) if at == 0 or parcel.to is not None)
        return [parcel.message for parcel in gone]

    def _seconds(self) -> float:
        return (PAYLOAD + len(self._queue[0].data)) / self.rate


class Detour:
    """A relay between two peers, in one direction: payloads pass one after the other, and have left only then."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free = 0.0
        self.carried = 0  # payloads

    def enter(self, now: float, size: int) -> float:
        """Take in a payload; the seconds until it has passed."""
        self._free = max(now, self._free) + (PAYLOAD + size) / self._rate
        self.carried += 1
        return self._free - now
