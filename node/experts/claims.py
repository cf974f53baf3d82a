"""Which member trains which part: the core, without clock, disk or network.

Each peer decides for itself, by what it has read: the live claims, the file with most rounds of each part, and its own
claim. Rules:

- A peer without a part takes one that is not finished and has no live claim. Which one follows from a hash of (family,
  part, peer), so that peers that look at the same time take different ones; conflicts are settled by rank.
- A claim ranks by the rounds of its author's file, then by its term, then by that hash. A claim that takes a part over
  has a higher term than all before it: so a peer that comes back yields to the one that went on, unless it has
  published more rounds. A peer that sees a live claim of higher rank on its own part yields.
- A part is given up for no other reason until it is finished; the peer then chooses another one at once.
- A fresh claim counts once it has been read back: training begins after the next reading of all claims.
- A peer without a part waits while there is none to take.

A claim is a record that its author renews every RENEW seconds, each time with a higher sequence number. It is live
while a higher number is seen within LEASE, by the reader's clock, so no two clocks need agree; a newcomer gives each
claim that it finds a whole lease. The record stays in the DHT for much longer, since it also describes the author's
file, which a peer that takes the part over must know.

    LEASE 60 s, RENEW 20 s, LOOK 20 s, 10 % more or less: one renewal may be lost, and one reading. A peer without a
    part looks once more when a lease runs out. So a part is taken over at most 22 + 60 + 3 = 85 s after the last
    renewal of its claim, and what the DHT takes; training begins when the file has come.
    A renewal is stored with 15 servers; a look is a get, 3 to 9 calls: 54 to 72 calls a minute and peer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shoal.protocol.base.ids import Digest, PeerId, digest

MOST_KEEPERS = 2  # peers beside its owner that have the newest file of a part that is not finished


@dataclass(frozen=True, slots=True)
class Claim:
    """That a peer trains a part."""

    peer: PeerId
    part: str
    term: int
    published: int = 0  # the round of the file that it has


@dataclass(frozen=True, slots=True)
class Sight:
    """What was read: live claims of others; of each part the round of the furthest file and the highest term."""

    claims: Sequence[Claim]
    published: Mapping[str, int]
    terms: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Take:
    """Claim this part, of which nobody's claim lives."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class Keep:
    """Go on with the part; its claim was read back, and nobody's ranks higher."""


@dataclass(frozen=True, slots=True)
class Yield:
    """Give the part up: this peer's claim ranks higher."""

    to: PeerId


@dataclass(frozen=True, slots=True)
class Release:
    """The part is finished."""


@dataclass(frozen=True, slots=True)
class Wait:
    """No part is to be had: all are taken, or finished."""


Decision = Take | Keep | Yield | Release | Wait


def draw(family: bytes, part: str, peer: PeerId) -> Digest:
    """By which peers prefer parts, and of two equal claims one is chosen: the lower one."""
    return digest("expert part", family, part.encode(), peer.encode())


class Claims:
    """One peer's part in a family; `lasts` has the last round of each part."""

    def __init__(self, family: bytes, me: PeerId, lasts: Mapping[str, int]) -> None:
        self.lasts = lasts
        self._family, self._me = family, me
        self.mine: Claim | None = None
        self.is_confirmed = False  # it was read back: training may begin

    def decide(self, sight: Sight, avoid: Sequence[str] = ()) -> list[Decision]:
        """What to do after a reading, one after the other, and remember it; parts to `avoid` are not taken."""
        decisions = [self._decide(sight, avoid)]
        if isinstance(decisions[0], Yield | Release):
            decisions.append(self._decide(sight, avoid))
        return decisions

    def _decide(self, sight: Sight, avoid: Sequence[str]) -> Decision:
        decision = self._rule(sight, avoid)
        if isinstance(decision, Take):
            self.mine, self.is_confirmed = decision.claim, False
        elif isinstance(decision, Keep):
            self.is_confirmed = True
        else:
            self.mine, self.is_confirmed = None, False
        return decision

    def published(self, part: str, round: int) -> None:
        """The file of a part that we train is that far; of one that is not ours any more, that means nothing."""
        if self.mine is not None and self.mine.part == part:
            self.mine = replace(self.mine, published=max(round, self.mine.published))

    def give_up(self, part: str) -> bool:
        """We cannot train it; whether it was still ours."""
        was_ours = self.mine is not None and self.mine.part == part
        if was_ours:
            self.mine, self.is_confirmed = None, False
        return was_ours

    def is_finished(self, part: str, published: Mapping[str, int]) -> bool:
        """Whether the part's last file is there."""
        return published.get(part, 0) >= self.lasts[part]

    def _rule(self, sight: Sight, avoid: Sequence[str]) -> Decision:
        mine = self.mine
        if mine is None:
            return self._choose(sight, avoid)
        if self.is_finished(mine.part, sight.published):
            return Release()
        rivals = [each for each in sight.claims if each.part == mine.part and each.peer != self._me]
        best = min([mine, *rivals], key=self._rank)
        return Keep() if best is mine else Yield(best.peer)

    def _choose(self, sight: Sight, avoid: Sequence[str]) -> Decision:
        taken = {each.part for each in sight.claims}
        free = [
            part
            for part in self.lasts
            if part not in taken and part not in avoid and not self.is_finished(part, sight.published)
        ]
        if not free:
            return Wait()
        part = min(free, key=lambda each: draw(self._family, each, self._me))
        return Take(Claim(self._me, part, sight.terms.get(part, 0) + 1))

    def _rank(self, claim: Claim) -> tuple[int, int, Digest]:
        """The lowest is the best."""
        return -claim.published, -claim.term, draw(self._family, claim.part, claim.peer)


def keepers(family: bytes, part: str, peers: Sequence[PeerId], owner: PeerId | None) -> list[PeerId]:
    """Who of these peers has the newest file of a part, so that it outlives its owner."""
    others = [peer for peer in peers if peer != owner]
    return sorted(others, key=lambda peer: draw(family, f"keep {part}", peer))[:MOST_KEEPERS]


# -- leases: whose claims live -----------------------------------------------------------------------------


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
