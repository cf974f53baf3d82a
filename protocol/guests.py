"""Who comes to us and has not said who it is yet, and who of one host has been let in: both are bounded.

A handshake takes an honest peer some milliseconds, so those that have waited longest are the least likely to be any.
When there is no room, the one of the host with the most that wait goes which has waited longest. So silent strangers
make room for each other, and for whoever does say who it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

Leave = Callable[[], None]


class Guests:
    """`waiting` may be at the door at a time, and `of_host` of one host be there at all, at the door or inside."""

    def __init__(self, waiting: int, of_host: int) -> None:
        self.waiting, self.of_host = waiting, of_host
        self._here: dict[int, str] = {}  # host by number: all who have not gone
        self._waiting: dict[int, Leave] = {}  # the oldest first
        self._of: Counter[str] = Counter()
        self._last = 0

    def come(self, host: str, leave: Leave) -> int | None:
        """Somebody is at the door, who goes when `leave` is called: its number, or None if there is no room for it."""
        if self._of[host] >= self.of_host and not self._turn_out(host):
            return None
        if len(self._waiting) >= self.waiting:
            self._turn_out(self._most_waiting())
        self._last += 1
        self._here[self._last], self._waiting[self._last] = host, leave
        self._of[host] += 1
        return self._last

    def let_in(self, number: int) -> None:
        """It has said who it is."""
        self._waiting.pop(number, None)

    def gone(self, number: int) -> None:
        """It has left, from wherever it was; to say so twice does no harm."""
        self._waiting.pop(number, None)
        if (host := self._here.pop(number, None)) is not None:
            self._of -= Counter([host])  # which forgets those of whom nobody is left

    def _turn_out(self, host: str) -> bool:
        """Have the one go that has waited longest of a host; whether there is one."""
        number = next((each for each in self._waiting if self._here[each] == host), None)
        if number is None:
            return False
        leave = self._waiting[number]
        self.gone(number)
        leave()
        return True

    def _most_waiting(self) -> str:
        return Counter(self._here[each] for each in self._waiting).most_common(1)[0][0]
