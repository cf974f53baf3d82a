"""Regions, in which records are stored and searched where an attacker's identities lie nearest to their place.

Rules:
- Honest ids are spread evenly, so the number of servers tells how near the nearest of a place should be. A place is
  crowded if REPLICAS servers lie within a distance in which less than one is expected; by chance one in 200 is.
- The region of a place is all ids that share so many leading bits with it that at least MIN_SERVERS servers are
  expected there, and at most twice as many. An attacker would have to outnumber a whole region to hide its records.
- The servers of a region are found by lookups of points spread over it, as lookups of the place itself end at the
  attacker's servers. Each node has points of its own, which nobody can predict.
- Handover ignores regions: records in one stay until they expire or their author writes again.

Sridhar et al., Content Censorship in the InterPlanetary File System (NDSS 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from shoal.dht.calls import Calls
from shoal.dht.keys import BITS, REPLICAS, K, node_id
from shoal.dht.lookup import Lookup, State
from shoal.dht.table import Table
from shoal.protocol.base.ids import Digest, PeerId, digest
from shoal.protocol.messages.dht import Contact

MIN_SERVERS = 8  # expected in a region
POINT_BITS = 3  # 8 points in a region
CALLS_PER_POINT = 40  # at most
SWEEP_SECONDS = 10.0  # at most, as others may answer as slowly as they like

OnSwept = Callable[[float, list[Contact]], None]


@dataclass(frozen=True, slots=True)
class Region:
    """All ids that differ from `target` in the last `bits` bits only."""

    target: int
    bits: int

    @classmethod
    def around(cls, target: int, table: Table) -> Region:
        """The region of a place, in a network of the size that `table` suggests."""
        bits = BITS
        while bits > 0 and MIN_SERVERS <= table.expected(1 << (bits - 1)) < inf:
            bits -= 1
        return cls(target, bits)

    def holds(self, peer: PeerId) -> bool:
        """Whether the id of `peer` is in the region."""
        return not (node_id(peer) ^ self.target) >> self.bits

    def points(self, me: PeerId) -> list[Digest]:
        """Targets spread evenly over the region, each at a random place in its part."""
        low = max(0, self.bits - POINT_BITS)
        parts = range(1 << (self.bits - low))
        return [self._point(part << low, low, me) for part in parts]

    def _point(self, part: int, low: int, me: PeerId) -> Digest:
        salt = digest("dht point", me.encode(), self.target.to_bytes(BITS // 8, "big"), part.to_bytes(BITS // 8, "big"))
        point = self.target ^ part ^ int.from_bytes(salt, "big") & ((1 << low) - 1)
        return Digest(point.to_bytes(BITS // 8, "big"))


def is_crowded(target: int, nearest: Sequence[Contact], table: Table) -> bool:
    """Whether the servers nearest to a place, nearest first, are nearer than by chance; False if we cannot tell."""
    if len(nearest) < REPLICAS:
        return False
    return table.expected(node_id(nearest[REPLICAS - 1].peer) ^ target) < 1


class Sweep:
    """Looks for all servers of a region, until `until`; `on_end` gets those that answered, at most K for each point."""

    def __init__(self, me: PeerId, table: Table, calls: Calls, region: Region, until: float, on_end: OnSwept) -> None:
        self._region, self._until, self._on_end = region, until, on_end
        self._is_over = False
        self._lookups = [
            Lookup(me, table, calls, point, REPLICAS, self._moved, most=CALLS_PER_POINT) for point in region.points(me)
        ]

    @property
    def calls_made(self) -> int:
        """How many calls it made."""
        return sum(lookup.calls_made for lookup in self._lookups)

    @property
    def hops(self) -> int:
        """The most hops of any lookup."""
        return max(lookup.hops for lookup in self._lookups)

    def begin(self, now: float) -> None:
        """Look up all points side by side."""
        for lookup in self._lookups:
            lookup.begin(now, trusting=False)

    def _moved(self, now: float) -> None:
        if now >= self._until:
            for lookup in self._lookups:
                lookup.stop()
        if all(lookup.is_over for lookup in self._lookups) and not self._is_over:
            self._is_over = True
            self._on_end(now, self._found())

    def _found(self) -> list[Contact]:
        near = (candidate for lookup in self._lookups for candidate in lookup.nearest(K))
        found = {each.contact.peer: each.contact for each in near if each.state is State.ANSWERED}
        return [contact for contact in found.values() if self._region.holds(contact.peer)]
