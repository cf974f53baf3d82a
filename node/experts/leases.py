"""Whose claims live: those that are renewed. The core, without clock or network.

A claim is a record that its author writes anew every RENEW seconds, each time with a higher sequence number. It lives
while a higher one is seen within LEASE: by the clock of whoever looks, so no two clocks need agree; a newcomer gives
each claim that it finds a whole lease. A record stays in the DHT for much longer, since it also says whose file is how
far, which whoever takes the part over must know.

    LEASE 60 s, RENEW 20 s, LOOK 20 s, 10 % more or less: one renewal may be lost, and any reading. Whoever has no part
    looks once more when a lease runs out. So a part is taken over at most 22 + 60 + 3 = 85 s after the last
    renewal of its claim, and what the DHT takes; training begins when the file has come.
    A renewal is stored with 15 servers; a look is a get, 3 to 9 calls: 54 to 72 calls a minute and peer.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.protocol.ids import PeerId

LEASE = 60.0  # seconds
RENEW = 20.0
LOOK = 20.0  # between two readings
SETTLE = 3.0  # seconds from a claim to the reading that confirms it: as long as another one may be on its way


@dataclass(slots=True)
class _Lease:
    sequence: int
    since: float  # when that sequence was first seen


class Leases:
    """When each author's entry about each part was last seen to be new."""

    def __init__(self, lease: float = LEASE) -> None:
        self._lease = lease
        self._seen: dict[tuple[PeerId, str], _Lease] = {}

    def see(self, now: float, peer: PeerId, part: str, sequence: int) -> bool:
        """An entry was read; whether it is a newer one than before."""
        known = self._seen.get((peer, part))
        if known is not None and sequence <= known.sequence:
            return False
        self._seen[peer, part] = _Lease(sequence, now)
        return True

    def runs_out(self, peer: PeerId, part: str) -> float:
        """When the author's lease ends, if it does not write again."""
        known = self._seen.get((peer, part))
        return known.since + self._lease if known is not None else 0.0

    def lives(self, now: float, peer: PeerId, part: str) -> bool:
        """Whether the author has written within a lease."""
        return now < self.runs_out(peer, part)
