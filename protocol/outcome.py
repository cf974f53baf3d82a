"""A decided round on its way to a member: the proof is here, its bytes perhaps not all."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from shoal.protocol.certificate import in_mask
from shoal.protocol.effects import Effect, Event
from shoal.protocol.fetching import Fetching
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.rounds import Certificate, ChunkRef
from shoal.protocol.shelf import Decision, Shelf


@dataclass(frozen=True, slots=True)
class Concluded(Event):
    """The round is decided and its bytes are here."""

    decision: Decision
    counted: tuple[bool, ...]  # chunk by chunk: whether our own contribution is in it


class Outcome:
    """Collects the bytes of one certificate."""

    def __init__(self, certificate: Certificate, chunks: tuple[ChunkRef, ...], shelf: Shelf) -> None:
        self.certificate = certificate
        self.chunks = chunks
        self._shelf = shelf
        self._fetching = Fetching(shelf, certificate.proposal.round, certificate.proposal.part)

    def fetch(self, me: PeerId, others: Sequence[PeerId]) -> list[Effect]:
        """Ask for what is missing: those who voted hold it, `others` may."""
        voted = [vote.peer for vote in self.certificate.votes]
        holders = [peer for peer in dict.fromkeys((*voted, *others)) if peer != me]
        return self._fetching.ask(self.chunks, self._shelf.missing(self.chunks), holders)

    def conclude(self, me: PeerId, contributed_to: Collection[int]) -> Concluded | None:
        """The whole decision, once every byte is here; what we contributed to other attempts is not in it."""
        if self._shelf.missing(self.chunks):
            return None
        decision = Decision(self.certificate, self.chunks, self._shelf.collect(self.chunks))
        proposal = self.certificate.proposal
        took_part = me in proposal.members and proposal.attempt in contributed_to
        place = proposal.members.index(me) if took_part else 0
        return Concluded(decision, tuple(took_part and in_mask(ref.mask, place) for ref in self.chunks))
