"""Who trains which part: the core, without clock, disk or network.

Each peer decides for itself, by what it has read: the claims that live (leases.py), the furthest file of each part,
and its own claim. Rules:

- Whoever has no part takes one that is not finished and that no live claim is on. Which one of them, follows from a
  hash of (family, part, peer), so that those who look at once take different ones; what is left is settled by rank.
- A claim ranks by how far its author's file is, then by its term, then by that hash. A claim that takes a part over has
  a higher term than all before it: so who comes back after having been away gives way to whoever went on, unless it has
  published further. Whoever sees a live claim of higher rank on its own part yields.
- Nobody gives a part up for another reason than that, but when it is finished; and whoever does chooses anew at once.
- A fresh claim counts once it has been read back: training begins after the next look at all claims.
- Who has no part, while there is none to take, waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shoal.protocol.ids import Digest, PeerId, digest

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
