"""Who meets whom in a round: pairs drawn afresh from the run's seed, as NoLoCo needs them (arXiv 2506.10911).

Each pair of peers has a weight, a hash under the seed and the round; the heaviest pair of all is a pair, then the
heaviest of the rest, and so on. All who know the seed, the round and the members come to the same pairs, in whatever
order they name them; every pairing is as likely as any other, and nobody can choose a partner. Of an odd number one is
left out. A member more or less changes few pairs: so those who do not see quite the same members still mostly meet.

Weights are symmetric and strictly ordered. So if everybody waits for a peer, and each of these waits for one that is of
no less weight to it, two wait for each other: there is no cycle of waiting (as in stable roommates, Irving 1985, whose
cycles need preferences that do not agree).

Many are cut into groups by their own hashes first, so that the work is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import TypeVar

from shoal.protocol.base.ids import digest

Peer = TypeVar("Peer", bound=str)
GROUP = 64  # peers, about: groups are halved until they are no larger on average


def weight(seed: bytes, round: int, one: str, other: str) -> bytes:
    """How much two are for each other, whoever is named first; 32 bytes that compare."""
    low, high = sorted((one.encode(), other.encode()))
    return digest("who meets whom", seed, _number(round), low, high)


def groups(seed: bytes, round: int, peers: Sequence[Peer]) -> list[list[Peer]]:
    """The peers in a power of two of groups, by hash; each in the order given."""
    count = 1
    while len(peers) > GROUP * count:
        count *= 2
    cut: list[list[Peer]] = [[] for _ in range(count)]
    for peer in peers:
        place = digest("group of a round", seed, _number(round), peer.encode()) if count > 1 else b""
        cut[int.from_bytes(place[:4], "little") % count].append(peer)
    return [group for group in cut if group]


def heaviest_first(weigh: Callable[[Peer, Peer], bytes], peers: Iterable[Peer]) -> list[tuple[Peer, Peer]]:
    """The greedy matching of one group; each pair as its members are ordered."""
    edges = sorted(combinations(sorted(peers), 2), key=lambda pair: weigh(*pair), reverse=True)
    free, found = dict.fromkeys(peer for pair in edges for peer in pair), []
    for one, other in edges:
        if one in free and other in free:
            del free[one], free[other]
            found.append((one, other))
    return found


def pairs(seed: bytes, round: int, peers: Sequence[Peer]) -> list[tuple[Peer, Peer]]:
    """The pairs of a round; ValueError if a peer is named twice."""
    if len(set(peers)) < len(peers):
        raise ValueError("a member is named twice")
    cut = groups(seed, round, peers)
    return [pair for group in cut for pair in heaviest_first(lambda a, b: weight(seed, round, a, b), group)]


class Draw:
    """One peer's view of the draw of one round; remembers weights, as it asks again when peers fall away."""

    def __init__(self, seed: bytes, round: int, me: str) -> None:
        self._seed, self._round, self._me = seed, round, me
        self._weights: dict[tuple[str, str], bytes] = {}

    def weigh(self, one: str, other: str) -> bytes:
        """The weight of a pair."""
        key = (one, other) if one < other else (other, one)
        if key not in self._weights:
            self._weights[key] = weight(self._seed, self._round, *key)
        return self._weights[key]

    def partner(self, others: Sequence[Peer]) -> Peer | None:
        """Whom of `others` we should meet; None if they are pairs without us."""
        everybody: list[str] = [self._me, *others]
        group = next(each for each in groups(self._seed, self._round, everybody) if self._me in each)
        for pair in heaviest_first(self.weigh, group):
            if self._me in pair:
                return next((peer for peer in others if peer in pair), None)
        return None


def _number(round: int) -> bytes:
    return round.to_bytes(8, "little")
