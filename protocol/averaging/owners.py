"""Which member owns which chunk: a function of the round's roster, the chunk and its epoch, the same for everybody.

In epoch 0 each member owns a row of chunks, as many as its share. When an owner is lost the proposer names a higher
epoch for its chunks, which says by its remainder at which place in the roster the new owner is: places never change
while a round is under way. So whoever knows a chunk's epoch knows its owner, and two who name different epochs agree on
the higher one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import zip_longest

from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.log import Seat

PLACES = 4096  # in a roster


class Owners:
    """Of the chunks of one round."""

    def __init__(self, seats: Sequence[Seat], chunks: int) -> None:
        """`seats`: the roster, in which somebody has a share."""
        self._first = _dealt(seats, chunks)
        self._seats = tuple(seats)

    def at(self, chunk: int, epoch: int) -> PeerId | None:
        """The owner of a chunk in an epoch; None if the roster must have grown since."""
        if not epoch:
            return self._first[chunk]
        place = epoch % PLACES
        return self._seats[place].peer if place < len(self._seats) else None

    def after(self, chunk: int, epoch: int, lost: Collection[PeerId], fit: Collection[PeerId] = ()) -> int | None:
        """The next epoch, in which somebody who is not lost owns the chunk; None if all are.

        The chunks of one are shared out among the other owners; if there are none, among the `fit`; else among all.
        """
        live = [place for place, seat in enumerate(self._seats) if seat.peer not in lost]
        fittest = [place for place in live if self._seats[place].peer in fit]
        heirs = [place for place in live if self._seats[place].share] or fittest or live
        return (epoch // PLACES + 1) * PLACES + heirs[chunk % len(heirs)] if heirs else None

    def of(self, peer: PeerId) -> list[int]:
        """The chunks of `peer` in epoch 0."""
        return [chunk for chunk, owner in enumerate(self._first) if owner == peer]


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
