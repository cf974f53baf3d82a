"""Which member owns which chunk: a function of the round's roster, the chunk and its epoch, the same for everybody.

In epoch 0 each member owns a row of chunks, as many as its share. When an owner is lost the proposer names a higher
epoch for its chunks: then they go, in turn, to the other owners, then to members that own nothing, and in the end come
back. So whoever knows a chunk's epoch knows its owner, and two who name different epochs agree on the higher one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.log import Seat


class Owners:
    """Of the chunks of one round."""

    def __init__(self, seats: Sequence[Seat], chunks: int) -> None:
        """`seats`: the roster, in which somebody has a share."""
        self._first = _dealt(seats, chunks)
        self._sharing = [seat.peer for seat in seats if seat.share]
        self._others = [seat.peer for seat in seats if not seat.share]

    def at(self, chunk: int, epoch: int) -> PeerId:
        """The owner of a chunk in an epoch."""
        first = self._first[chunk]
        if not epoch:
            return first
        heirs = [peer for peer in self._sharing if peer != first]
        line = [*_turned(heirs, chunk), *_turned(self._others, chunk), first]
        return line[(epoch - 1) % len(line)]

    def of(self, peer: PeerId) -> list[int]:
        """The chunks of `peer` in epoch 0."""
        return [chunk for chunk, owner in enumerate(self._first) if owner == peer]

    def all(self) -> list[PeerId]:
        """Those who own chunks in epoch 0, in roster order."""
        return list(dict.fromkeys(self._first))


def send_order(owners: Sequence[PeerId], me: PeerId) -> list[int]:
    """All chunks, given the owner of each: interleaved by owner, and begun at another owner by each member.

    So nobody is everybody's first.
    """
    known = sorted(set(owners) | {me})
    place = known.index(me) + 1
    shares = [[chunk for chunk, owner in enumerate(owners) if owner == peer] for peer in known[place:] + known[:place]]
    return [chunk for turn in zip_longest(*shares) for chunk in turn if chunk is not None]


def _dealt(seats: Sequence[Seat], chunks: int) -> list[PeerId]:
    """In roster order as many chunks to each as its share of all shares, by largest remainders."""
    total = sum(seat.share for seat in seats)
    exact = [seat.share * chunks for seat in seats]
    counts = [each // total for each in exact]
    rest = sorted(range(len(seats)), key=lambda place: (-(exact[place] % total), place))
    for place in rest[: chunks - sum(counts)]:
        counts[place] += 1
    return [seat.peer for seat, count in zip(seats, counts, strict=True) for _ in range(count)]


def _turned(peers: Sequence[PeerId], by: int) -> list[PeerId]:
    at = by % len(peers) if peers else 0
    return [*peers[at:], *peers[:at]]
