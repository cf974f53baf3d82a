"""One chunk at its owner: contributions in, one weighted mean out.

Contributions are folded in roster order whatever the order of arrival, so that a replay gives the same bits. A
contributor that is lost is skipped at its place; the weights of the others renormalise because the sum only knows
those it was given. Each contributor is counted once. What cannot be a contribution, by its size, is refused when it
comes, and does not wait for its turn; what else is wrong with one is seen when it is added.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from shoal.protocol.base.errors import PayloadError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Payload
from shoal.protocol.rounds.agreement.certificate import mask_of
from shoal.protocol.rounds.agreement.roster import Plan
from shoal.protocol.rounds.allreduce.reducer import Reducer


def misfit(chunk: int, payload: Payload, sender: PeerId) -> PayloadError:
    """Of a size that no contribution to this chunk has."""
    return PayloadError(f"contributes {len(payload)} bytes to chunk {chunk}, which no codec makes of it", sender)


class OwnedChunk:
    """The reduction of one chunk."""

    def __init__(self, plan: Plan, chunk: int, reducer: Reducer) -> None:
        self._plan = plan
        self._order = plan.contributors()
        self._weights = dict(zip(plan.members, plan.weights, strict=True))
        self._sum = reducer.open(chunk)
        self._chunk = chunk
        self._fits = partial(reducer.fits, chunk)
        self._held: dict[PeerId, Payload | Callable[[], Payload] | None] = {}  # None: what came was refused
        self._lost: set[PeerId] = set()
        self._counted: list[PeerId] = []
        self._next = 0

    def __repr__(self) -> str:
        return f"OwnedChunk(counted={len(self._counted)}, missing={self.missing()})"

    def add(self, peer: PeerId, payload: Payload) -> list[PayloadError]:
        """Take a contribution, once. Returns the errors of those that turned out bad and were left out."""
        if peer in self._held or peer not in self._order[self._next :]:
            return []
        if self._fits(len(payload)):
            self._held[peer] = payload
            return self.fold()
        self._held[peer] = None
        return [misfit(self._chunk, payload, peer), *self.fold()]

    def hold(self, peer: PeerId, make: Callable[[], Payload]) -> None:
        """Take a contribution that is made when there is something to add it to: all chunks at once would take long."""
        if peer not in self._held and peer in self._order[self._next :]:
            self._held[peer] = make

    def lose(self, peer: PeerId) -> list[PayloadError]:
        """Go on without `peer`, unless its contribution is already here."""
        self._lost.add(peer)
        return self.fold()

    def missing(self) -> list[PeerId]:
        """Contributors that are still awaited."""
        return [peer for peer in self._order[self._next :] if peer not in self._held and peer not in self._lost]

    @property
    def is_complete(self) -> bool:
        """Whether nobody is awaited any more."""
        return self._next == len(self._order)

    @property
    def is_hopeless(self) -> bool:
        """Whether all who could contribute are lost or were refused: the mean of nothing is no result."""
        return self.is_complete and not self._counted

    def result(self) -> tuple[bytes, Payload]:
        """(mask of those counted, encoded mean)."""
        return mask_of(self._plan.members, self._counted), self._sum.finish()

    def fold(self) -> list[PayloadError]:
        """Add those whose turn has come; the errors of the bad ones."""
        errors: list[PayloadError] = []
        while self._next < len(self._order):
            peer = self._order[self._next]
            if peer in self._held:
                held = self._held.pop(peer)
                errors += self._count(peer, held) if held is not None else []
            elif peer not in self._lost:
                break
            self._next += 1
        return errors

    def _count(self, peer: PeerId, held: Payload | Callable[[], Payload]) -> list[PayloadError]:
        try:
            self._sum.add(self._weights[peer], held() if callable(held) else held)
        except PayloadError as error:
            return [PayloadError(error.reason, peer)]
        self._counted.append(peer)
        return []
