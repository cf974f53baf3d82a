"""A decided round on its way to a member: the proof is here, its bytes perhaps not all."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from shoal.protocol.base.effects import Effect, Event
from shoal.protocol.base.ids import PeerId
from shoal.protocol.membership.view import fastest
from shoal.protocol.messages.rounds import Certificate, ChunkRef
from shoal.protocol.rounds.agreement.certificate import in_mask
from shoal.protocol.rounds.allreduce.shelf import Decision
from shoal.protocol.rounds.attempt import Attempt
from shoal.protocol.rounds.fetching import Fetching
from shoal.protocol.rounds.matchmaking.context import Means


@dataclass(frozen=True, slots=True)
class Concluded(Event):
    """The round is decided and its bytes are here."""

    decision: Decision
    counted: tuple[bool, ...]  # chunk by chunk: whether our own contribution is in it


class Outcome:
    """Collects the bytes of one certificate."""

    def __init__(
        self, certificate: Certificate, chunks: tuple[ChunkRef, ...], means: Means, fetching: Fetching
    ) -> None:
        self.certificate = certificate
        self.chunks = chunks
        self._means = means
        self._shelf = means.shelf
        self._fetching = fetching

    def fetch(self, now: float, attempt: Attempt | None) -> list[Effect]:
        """Ask for what is missing and not on its way: those who voted hold it, the others may; the fastest first."""
        view = self._means.view
        voted = fastest([vote.peer for vote in self.certificate.votes], view)
        holders = [peer for peer in dict.fromkeys((*voted, *fastest(view.alive(), view))) if peer != self._means.me]
        return self._fetching.ask(now, self.chunks, self._missing(now, attempt), holders)

    def is_near(self, now: float, attempt: Attempt | None) -> bool:
        """Whether all that is missing is on its way to us."""
        return not self._missing(now, attempt)

    def _missing(self, now: float, attempt: Attempt | None) -> list[int]:
        """What nobody is about to send us."""
        missing = self._shelf.missing(self.chunks)
        return missing if attempt is None else [chunk for chunk in missing if not attempt.is_awaited(now, chunk)]

    def conclude(self, me: PeerId, contributed_to: Collection[int]) -> Concluded | None:
        """The whole decision, once every byte is here; what we contributed to other attempts is not in it."""
        if self._shelf.missing(self.chunks):
            return None
        decision = Decision(self.certificate, self.chunks, self._shelf.collect(self.chunks))
        proposal = self.certificate.proposal
        took_part = me in proposal.members and proposal.attempt in contributed_to
        place = proposal.members.index(me) if took_part else 0
        return Concluded(decision, tuple(took_part and in_mask(ref.mask, place) for ref in self.chunks))
