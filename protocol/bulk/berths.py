"""The sockets by which payloads go and come, of one node: so many at most, and a thread for each.

A berth is taken for as long as its thread runs: so nobody has to give it back. Belongs to the loop.
"""

from __future__ import annotations

from threading import Thread

from shoal.protocol.descriptors import share

MOST = 256  # of all peers together: one both ways with 128 of them
OF_FILES = 1 / 4  # the same, as a share of the files that may be open


class Berths:
    """Who lies in them."""

    def __init__(self, most: int = MOST) -> None:
        self._most = share(OF_FILES, most)
        self._threads: list[Thread] = []

    @property
    def are_full(self) -> bool:
        """Whether there is none left."""
        return self._taken() >= self._most

    @property
    def are_half_full(self) -> bool:
        """Whether a peer that has one already should be content with it."""
        return 2 * self._taken() >= self._most

    def _taken(self) -> int:
        self._threads = [each for each in self._threads if each.is_alive()]
        return len(self._threads)

    def take(self, thread: Thread) -> None:
        """For a thread that runs."""
        self._threads.append(thread)

    def join(self, limit: float) -> None:
        """Wait until all threads have ended; each for so many seconds."""
        for each in self._threads:
            each.join(limit)
