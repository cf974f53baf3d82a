"""Who owns how many chunks, so that the slowest line is done soonest. Pure, and integers alone: all compute the same.

Of N members C contribute. A vector of K chunks weighs `scatter` bytes each on the way to the owners, and `gather`
bytes on the way back. A member that owns k of them

    sends     scatter (K - k)  its part of all other chunks, if it contributes    + gather k (N - 1)  its means, to all
    receives  gather (K - k)   the means of all other chunks        + scatter k (C, or C - 1)  what others contribute

and is done when both have passed its line: T(k) = max(sent / up, received / down). With one codec both are
K + (N - 2) k, so a round takes T >= K / up of each member even if it owns nothing, and with equal lines all own K / N:
2 (N - 1) / N of the vector each way, which is the least that there is (Patarasuk and Yuan, J. Parallel Distrib.
Comput. 69, 2009). With unequal ones, who has time T can own k = (T up / K - 1) K / (N - 2): the least T at which these
sum up to K is the optimum, and whoever can own nothing in that time only contributes. As T grows with k for everybody,
that is the same as to give chunk after chunk to whoever is done first with it, and so it is done here: exact in whole
chunks. Of two members each line carries the vector once, whoever owns what: they share alike.

Rates are what members claim. Those within NOISE of the middle one count as that one: noise must not move chunks. Who
was not measured counts as the middle, and nobody is faster than FASTEST: beyond that, a round waits for processors, of
which each has one. A liar gains little: a claim makes it own more chunks, at most all, and so slows rounds down, as it
could by sending slowly; or fewer, down to none, and it is spared up to (N - 2) / (N - 1) of its traffic, which others
carry. No claim changes what is averaged.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

FASTEST = 125_000_000  # bytes a second: 1 Gbit/s
NOISE = 8  # a rate is noise if it is less than an eighth away from the middle
SCALE = 1 << 48  # parts of a second in which times are compared


@dataclass(frozen=True, slots=True)
class Claim:
    """One member: its line in bytes a second (0: not measured), and its part in the round."""

    up: int
    down: int
    contributes: bool = True
    may_own: bool = True


@dataclass(frozen=True, slots=True)
class Load:
    """What is to be shared: chunks, in these many bytes on their way to owners and back, or any measure of both."""

    chunks: int
    scatter: int = 1
    gather: int = 1


def share(claims: Sequence[Claim], load: Load, most_owners: int) -> list[int]:
    """How many chunks each member owns, in all `load.chunks`; somebody may own."""
    lines = _lines(claims, load)
    turns = [(line.seconds(1), 1, place) for place, line in enumerate(lines) if claims[place].may_own]
    heapq.heapify(turns)
    counts = [0] * len(claims)
    owners, left = 0, load.chunks
    while left:
        _, count, place = heapq.heappop(turns)
        if count == 1 and owners == most_owners:
            continue
        owners, left = owners + (count == 1), left - 1
        counts[place] = count
        heapq.heappush(turns, (lines[place].seconds(count + 1), count + 1, place))
    return counts


@dataclass(frozen=True, slots=True)
class _Line:
    """What a member's line carries: bytes up and down without chunks of its own, and more for each of these."""

    up: int
    down: int
    sent: int
    received: int
    sent_each: int
    received_each: int

    def seconds(self, chunks: int) -> int:
        """In parts of a second."""
        sent, received = self.sent + self.sent_each * chunks, self.received + self.received_each * chunks
        return max(SCALE * sent // self.up, SCALE * received // self.down)


def _lines(claims: Sequence[Claim], load: Load) -> list[_Line]:
    ups, downs = _counted([claim.up for claim in claims]), _counted([claim.down for claim in claims])
    return [_line(claims, place, load, ups[place], downs[place]) for place in range(len(claims))]


def _line(claims: Sequence[Claim], place: int, load: Load, up: int, down: int) -> _Line:
    """A chunk that would save its owner more than it costs, as means are so much smaller, counts as costing nothing."""
    if len(claims) <= 2:
        return _Line(1, 1, 0, 0, 0, 0)  # then the one with fewer chunks is next
    own = load.scatter if claims[place].contributes else 0
    others = load.scatter * sum(claim.contributes for claim in claims) - own
    return _Line(
        up,
        down,
        own * load.chunks,
        load.gather * load.chunks,
        max(0, load.gather * (len(claims) - 1) - own),
        max(0, others - load.gather),
    )


def _counted(rates: Sequence[int]) -> list[int]:
    """What these claims count as."""
    capped = [min(rate, FASTEST) for rate in rates]
    measured = sorted(filter(None, capped))
    middle = measured[(len(measured) - 1) // 2] if measured else FASTEST
    return [middle if not rate or NOISE * abs(rate - middle) < middle else rate for rate in capped]
