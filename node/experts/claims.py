"""Decides which member trains which part: the core, without clock, disk or network.

Each peer decides for itself from what it has read: the live claims, the furthest file of each part, and its own claim.
Rules:

- A peer without a part takes one that is not finished and has no live claim. A hash of (family, part, peer) determines
  which, so that peers that decide at the same time mostly take different parts; conflicts are settled by rank.
- A claim ranks by the rounds of its author's file, then by its term, then by that hash. A claim that takes over a part
  has a higher term than all before it: so a peer that comes back yields to its successor, unless it has published more
  rounds. A peer that sees a live claim of higher rank on its own part yields.
- There is no other reason to give up a part before it is finished; the peer then chooses another part at once.
- A new claim counts once it has been read back: training begins after the next reading of all claims.
- A peer without a part waits while there is none to take.

A claim is a record that its author renews every RENEW seconds, each time with a higher sequence number. It is live
as long as a higher number is seen within LEASE by the reader's clock, so clocks need not agree; a newcomer gives each
claim that it finds a whole lease. The record stays in the DHT for much longer, as it also describes the author's file,
which a peer that takes over the part needs.

    LEASE 60 s, RENEW 20 s, LOOK 20 s, each 10 % more or less: one renewal and one reading may be lost. A peer without a
    part reads once more when a lease runs out. So a part is taken over at most 22 + 60 + 3 = 85 s after the last
    renewal of its claim, plus the time of the DHT; training begins when the file has been fetched.
    A renewal is stored with 15 servers; a reading is a get of 3 to 9 calls: 54 to 72 calls per minute and peer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shoal.protocol.base.ids import Digest, PeerId, digest

MOST_KEEPERS = 2  # peers beside the owner that keep the newest file of an unfinished part


@dataclass(frozen=True, slots=True)
class Claim:
    """A peer's claim to train a part."""

    peer: PeerId
    part: str
    term: int
    published: int = 0  # the round of the peer's file


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read: live claims of others; for each part the round of the furthest file, and the highest term."""

    claims: Sequence[Claim]
    published: Mapping[str, int]
    terms: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Take:
    """Claim this part, which has no live claim."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class Keep:
    """Go on with the part: our claim was read back, and no other ranks higher."""


@dataclass(frozen=True, slots=True)
class Yield:
    """Give up the part: the claim of the peer `to` ranks higher."""

    to: PeerId


@dataclass(frozen=True, slots=True)
class Release:
    """The part is finished."""


@dataclass(frozen=True, slots=True)
class Wait:
    """There is no part to take: all are claimed or finished."""


Decision = Take | Keep | Yield | Release | Wait


def draw(family: bytes, part: str, peer: PeerId) -> Digest:
    """A peer's preference for a part: the lowest is the first choice, and wins of two otherwise equal claims."""
    return digest("expert part", family, part.encode(), peer.encode())


class Claims:
    """One peer's decisions in a family; `lasts` has the last round of each part."""

    def __init__(self, family: bytes, me: PeerId, lasts: Mapping[str, int]) -> None:
        self.lasts = lasts
        self._family, self._me = family, me
        self.mine: Claim | None = None
        self.is_confirmed = False  # our claim was read back: training may begin

    def decide(self, reading: Reading, avoid: Sequence[str] = ()) -> list[Decision]:
        """Decide after a reading: one decision, or two in order. Parts in `avoid` are not taken."""
        decisions = [self._decide(reading, avoid)]
        if isinstance(decisions[0], Yield | Release):
            decisions.append(self._decide(reading, avoid))
        return decisions

    def _decide(self, reading: Reading, avoid: Sequence[str]) -> Decision:
        decision = self._rule(reading, avoid)
        if isinstance(decision, Take):
            self.mine, self.is_confirmed = decision.claim, False
        elif isinstance(decision, Keep):
            self.is_confirmed = True
        else:
            self.mine, self.is_confirmed = None, False
        return decision

    def published(self, part: str, round: int) -> None:
        """Note that we have published a round of a part; without effect if the part is not ours any more."""
        if self.mine is not None and self.mine.part == part:
            self.mine = replace(self.mine, published=max(round, self.mine.published))

    def give_up(self, part: str) -> bool:
        """Give up a part that we cannot train. Returns whether it was still ours."""
        was_ours = self.mine is not None and self.mine.part == part
        if was_ours:
            self.mine, self.is_confirmed = None, False
        return was_ours

    def is_finished(self, part: str, published: Mapping[str, int]) -> bool:
        """Whether the part's last file has been published."""
        return published.get(part, 0) >= self.lasts[part]

    def _rule(self, reading: Reading, avoid: Sequence[str]) -> Decision:
        mine = self.mine
        if mine is None:
            return self._choose(reading, avoid)
        if self.is_finished(mine.part, reading.published):
            return Release()
        rivals = [each for each in reading.claims if each.part == mine.part and each.peer != self._me]
        best = min([mine, *rivals], key=self._rank)
        return Keep() if best is mine else Yield(best.peer)

    def _choose(self, reading: Reading, avoid: Sequence[str]) -> Decision:
        taken = {each.part for each in reading.claims}
        free = [
            part
            for part in self.lasts
            if part not in taken and part not in avoid and not self.is_finished(part, reading.published)
        ]
        if not free:
            return Wait()
        part = min(free, key=lambda each: draw(self._family, each, self._me))
        return Take(Claim(self._me, part, reading.terms.get(part, 0) + 1))

    def _rank(self, claim: Claim) -> tuple[int, int, Digest]:
        """A sort key: the lowest is the highest rank."""
        return -claim.published, -claim.term, draw(self._family, claim.part, claim.peer)


def keepers(family: bytes, part: str, peers: Sequence[PeerId], owner: PeerId | None) -> list[PeerId]:
    """Which of these peers keep the newest file of a part, so that it outlives its owner."""
    others = [peer for peer in peers if peer != owner]
    return sorted(others, key=lambda peer: draw(family, f"keep {part}", peer))[:MOST_KEEPERS]


# -- leases: which claims are live ---------------------------------------------------------------------------


LEASE = 60.0  # seconds
RENEW = 20.0
LOOK = 20.0  # seconds between two readings
SETTLE = 3.0  # seconds from a claim to the reading that confirms it: a rival claim may take as long to arrive


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
        """Note an entry that was read. Returns whether it is newer than the last one."""
        known = self._seen.get((peer, part))
        if known is not None and sequence <= known.sequence:
            return False
        self._seen[peer, part] = _Lease(sequence, now)
        return True

    def runs_out(self, peer: PeerId, part: str) -> float:
        """When the author's lease ends unless it writes again."""
        known = self._seen.get((peer, part))
        return known.since + self._lease if known is not None else 0.0

    def lives(self, now: float, peer: PeerId, part: str) -> bool:
        """Whether the author has written within a lease."""
        return now < self.runs_out(peer, part)
