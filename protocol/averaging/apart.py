"""Who of a group can send to whom without a relay, by their own offers; and so who is fit to own chunks.

Rules:
- Two are apart if either of them says so. Whoever says that others cannot reach it is fit for nothing, but may well
  reach them.
- The fittest are apart from the fewest. Mostly from nobody: then no payload takes a relay, as whoever cannot be dialled
  dials out, and gets results on connections of its own. Where nobody is like that, as few payloads as possible do.
- How many an offer names is bounded, and in a large run fewer, as every voter and owner holds the offers of all.
  Who would have to name more says that it cannot be reached, and names those first that can: only of these its word
  matters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.averaging import Offer

MAX_APART = 64  # members that an offer names
NAMED_IN_ALL = 8192  # by all offers of a group: 450 KB


@dataclass(frozen=True, slots=True)
class Standing:
    """What a member says in its offer of how others reach it."""

    reachable: bool = True
    apart: tuple[PeerId, ...] = ()


OPEN = Standing()


@dataclass(frozen=True, slots=True)
class Ways:
    """The ways within one group."""

    apart: Mapping[PeerId, Collection[PeerId]] = field(default_factory=dict)  # both ways round
    hidden: Collection[PeerId] = ()  # whom others cannot reach

    def fittest(self, candidates: Iterable[PeerId], group: Sequence[PeerId]) -> list[PeerId]:
        """Those of `candidates` that are apart from the fewest of `group`, in their order."""
        counts = {peer: self._count(peer, group) for peer in candidates}
        least = min(counts.values(), default=0)
        return [peer for peer, count in counts.items() if count == least]

    def by_relay(self, owners: Iterable[PeerId], group: Sequence[PeerId]) -> list[PeerId]:
        """Those of `group` whose payloads to some of the `owners`, or from them, may take a relay."""
        owners = list(dict.fromkeys(owners))
        return [peer for peer in group if any(peer != owner and self._needs_relay(peer, owner) for owner in owners)]

    def _needs_relay(self, peer: PeerId, owner: PeerId) -> bool:
        return owner in self.hidden or peer in self.apart.get(owner, ())

    def _count(self, peer: PeerId, group: Sequence[PeerId]) -> int:
        if peer in self.hidden:
            return len(group)
        apart = self.apart.get(peer, ())
        return sum(other in apart for other in group) if apart else 0


def ways_between(offers: Iterable[Offer]) -> Ways:
    """The ways within the group that makes these offers."""
    apart: dict[PeerId, set[PeerId]] = defaultdict(set)
    hidden: set[PeerId] = set()
    for offer in offers:
        apart[offer.peer].update(offer.apart)
        for other in offer.apart:
            apart[other].add(offer.peer)
        if not offer.reachable:
            hidden.add(offer.peer)
    return Ways(dict(apart), hidden)


def standing(apart: Sequence[PeerId], members: int) -> Standing:
    """What to say of ourselves, in a run of so many, if we are apart from these; those come first that matter."""
    most = min(MAX_APART, NAMED_IN_ALL // max(1, members))
    return Standing(len(apart) <= most, tuple(apart[:most]))
