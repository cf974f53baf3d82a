"""A decided round on its way to a member: the proof is here, its bytes perhaps not all."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.protocol.effects import Effect
from shoal.protocol.fetching import Fetching
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.rounds import Certificate, ChunkRef
from shoal.protocol.shelf import Decision, Shelf


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

    def decision(self) -> Decision | None:
        """The whole decision, once every byte is here."""
        if self._shelf.missing(self.chunks):
            return None
        return Decision(self.certificate, self.chunks, self._shelf.collect(self.chunks))
