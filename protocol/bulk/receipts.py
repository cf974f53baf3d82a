"""Which payloads of one socket have arrived: the receiver counts what it has taken, the sender keeps the rest.

What was written may lie in the buffers of both ends, which hold tens of MiB where a system lets them, and is lost with
the socket. So no number of bytes that were written last would do: a payload is kept until the other end has it. Who
takes and never says so gets no more: else it could make us keep all that we ever sent.

Both ends count the room that payloads take in memory (`rounded`), however short they are: so who has MOST to hear of
is always told.
"""

from __future__ import annotations

from collections import deque

from shoal.protocol.bulk.backlog import Parcel
from shoal.protocol.errors import TransportError
from shoal.protocol.rooms import rounded

GRAIN = 2 << 20  # bytes that are worth a word
MOST = 32 << 20  # bytes that are on their way, and the last payload: as many as there may be of contributions


class Unheard:
    """What was given to a socket, and the other end has not said to have. One thread adds, the loop takes away."""

    def __init__(self) -> None:
        self._parcels: deque[tuple[Parcel, int]] = deque()
        self._heard = 0  # payloads
        self._added = self._gone = 0  # bytes; each belongs to one thread

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be added before the other end has said something."""
        return self._added - self._gone >= MOST

    def add(self, parcel: Parcel, size: int) -> None:
        """Its first byte is about to be written; its payload has so many."""
        self._added += rounded(size)
        self._parcels.append((parcel, rounded(size)))

    def hear(self, taken: int) -> None:
        """The other end has so many in all. TransportError for more than were sent, or less than it had."""
        if not self._heard <= taken <= self._heard + len(self._parcels):
            raise TransportError(f"took {taken} payloads, after {self._heard}, with {len(self._parcels)} on their way")
        while self._heard < taken:
            _, room = self._parcels.popleft()
            self._heard, self._gone = self._heard + 1, self._gone + room

    def parcels(self) -> list[Parcel]:
        """In their order."""
        return [parcel for parcel, _ in list(self._parcels)]


class Taken:
    """What came by a socket, and how much of it the sender does not know yet. Belongs to the loop."""

    def __init__(self) -> None:
        self.count = 0  # payloads
        self._untold = 0  # bytes

    def add(self, size: int) -> bool:
        """One more, of so many bytes, or a few more; whether it is time to say so."""
        self.count += 1
        self._untold += rounded(size)
        return self._untold >= GRAIN

    def told(self) -> None:
        """The sender knows all."""
        self._untold = 0
