"""What one member of a reduction lacks, from whom, and how it asks for that.

A chunk that we own and that somebody has offered to us ready-made is awaited from that member alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.rounds import Want
from shoal.protocol.rounds.agreement.roster import Plan
from shoal.protocol.rounds.allreduce.owned import OwnedChunk
from shoal.protocol.rounds.allreduce.ownership import Ownership
from shoal.protocol.rounds.allreduce.results import Offers, Results


class Lacking:
    """Looks at the parts of a reduction, and changes none of them."""

    def __init__(
        self,
        plan: Plan,
        owners: Ownership,
        owned: Mapping[int, OwnedChunk],
        results: Results,
        offers: Offers,
        lost: Collection[PeerId],
    ) -> None:
        self._plan = plan
        self._owners = owners
        self._owned = owned
        self._results = results
        self._offers = offers
        self._lost = lost

    def awaited(self) -> list[PeerId]:
        """Whom our progress hangs on, in roster order; ourselves too, if the result of a chunk of ours is open."""
        wanted = {self._owners.of(chunk) for chunk in self._results.unfinished()}
        for chunk in self._owned:
            wanted.update(self._contributors(chunk))
        return [peer for peer in self._plan.members if peer in wanted]

    def to_blame(self) -> list[PeerId]:
        """Who owes us what hangs on nobody else: a contribution. If nobody does: who owes us a result."""
        bringing = {peer for chunk in self._owned for peer in self._contributors(chunk)}
        wanted = bringing or {self._owners.of(chunk) for chunk in self._results.unfinished()}
        return [peer for peer in self._plan.members if peer in wanted]

    def lacks_contribution(self, peer: PeerId) -> bool:
        """Whether `peer` has yet to bring us something of its own, for which it needs nobody else."""
        return any(peer in self._contributors(chunk) for chunk in self._owned)

    def want(self, peer: PeerId) -> list[Effect]:
        """Ask `peer` for all that we lack from it; it knows what of that is on its way already."""
        contributions = tuple(chunk for chunk in self._owned if peer in self._contributors(chunk))
        results = tuple(chunk for chunk in self._results.unfinished() if self._owners.of(chunk) == peer)
        if not contributions and not results:
            return []
        plan = self._plan
        return [Send(peer, Want(plan.round, plan.part, plan.attempt, contributions, results))]

    def sender_of(self, chunk: int) -> PeerId | None:
        """The live owner of a chunk whose result is not here: it is going to send it."""
        owner = self._owners.of(chunk)
        return owner if self._results[chunk] is None and owner not in self._lost else None

    def _contributors(self, chunk: int) -> list[PeerId]:
        """Who has yet to bring something for a chunk that we own."""
        if self._results[chunk] is not None:
            return []
        source = self._offers.source(chunk)
        return self._owned[chunk].missing() if source is None or source in self._lost else [source]
