"""Between the engine's thread and whoever reads what it writes: deltas of one request, bounded, as they come.

The thread counts what it gives, the loop what was taken; both are plain numbers with one writer each.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from shoal.node.serve.sequence import Delta
from shoal.protocol.errors import ShoalError

ROOM = 64  # deltas that a reader may lag behind


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
