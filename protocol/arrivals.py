"""The streams that a peer opens: one of each protocol, and, while the peer moves, the one that it leaves.

Rules:
- A new stream replaces the old. Where the old one comes by a relay and the new one does not, the peer has moved to a
  better connection: the old one is heard to its end, and the new one from then on.
- Else, if the old one had not ended, the peer has lost a connection that looks alive here, and hears nothing there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.protocol.incoming import Incoming
from shoal.protocol.transport import Stream


class Arrivals:
    """Of one peer. `read(protocol, stream)` begins to; `was_lost(protocol)` hears of what the peer has lost."""

    def __init__(self, read: Callable[[str, Stream], Incoming[Any]], was_lost: Callable[[str], None]) -> None:
        self._read, self._was_lost = read, was_lost
        self._streams: dict[str, Incoming[Any]] = {}
        self._left: dict[str, Incoming[Any]] = {}

    def accept(self, protocol: str, stream: Stream) -> None:
        """Read a stream that the peer has opened."""
        last = self._streams.get(protocol)
        new = self._streams[protocol] = self._read(protocol, stream)
        if last is None or last.is_over:
            return
        if last.has_ended or (last.is_relayed and not new.is_relayed):
            new.follow(last)
            self._leave(protocol, last)
        else:
            last.close()
            self._was_lost(protocol)

    def close(self) -> None:
        """Hear nothing more."""
        for each in [*self._streams.values(), *self._left.values()]:
            each.close()

    def _leave(self, protocol: str, last: Incoming[Any]) -> None:
        """Who moves again before that has done with the one before."""
        if protocol in self._left and not self._left[protocol].is_over:
            self._left[protocol].close()
        self._left[protocol] = last
