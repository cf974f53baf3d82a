"""Two peers exchange their vectors chunk by chunk, without a group and without a vote.

Rules: each gets the other's bytes whole or not at all, and once; a partner that is lost is told of, and what it had
sent is dropped; bytes that cannot be used name their sender. Whether the partner got ours as well is not known, and
nobody waits for it: applying may be one-sided. Lost messages are asked for again, ever more rarely.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shoal.protocol.effects import Effect, Event, Send, Tell
from shoal.protocol.errors import PayloadError, RemoteError
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.rounds import Contribution, Want
from shoal.protocol.reducer import Contribute
from shoal.protocol.silence import Silence
from shoal.protocol.wire import Payload

EPOCH = (0, 0)  # chunks do not change hands between two


@dataclass(frozen=True, slots=True)
class Exchanged(Event):
    """The partner's whole vector is here."""

    partner: PeerId
    payloads: tuple[Payload, ...]


@dataclass(frozen=True, slots=True)
class PartnerLost(Event):
    """Nothing will come of this exchange."""

    partner: PeerId


@dataclass(frozen=True, slots=True)
class Pairing:
    """Which exchange: `number` tells apart those of one round, if a partner had to be replaced."""

    partner: PeerId
    round: int
    part: int
    number: int
    chunks: int


class PairExchange:
    """One side of one exchange."""

    def __init__(
        self,
        now: float,
        pairing: Pairing,
        contribution: Contribute,
        check: Callable[[int, Payload], None],
        patience: float,
    ) -> None:
        self._pairing = pairing
        self._contribution = contribution
        self._check = check  # PayloadError for bytes that cannot be used
        self._patience = patience
        self._silence = Silence([pairing.partner], now)
        self._payloads: dict[int, Payload] = {}
        self.is_over = False

    def __repr__(self) -> str:
        return f"PairExchange({self._pairing}, {len(self._payloads)} chunks, over={self.is_over})"

    def start(self) -> list[Effect]:
        """Send our vector."""
        return [self._chunk(index) for index in range(self._pairing.chunks)]

    def receive(self, now: float, sender: PeerId, message: Contribution | Want) -> list[Effect]:
        """The partner's bytes, or its request for ours, which is answered for as long as this object lives."""
        pairing = self._pairing
        if sender != pairing.partner:
            raise RemoteError("is not our partner", sender)
        if (message.round, message.part, message.attempt) != (pairing.round, pairing.part, pairing.number):
            return []
        if isinstance(message, Want):
            return self._repeat(sender, message)
        self._check_chunk(sender, message)
        self._silence.hear(now, sender, progress=True)
        if self.is_over:
            return []
        self._payloads.setdefault(message.chunk, message.payload)
        return self._finish() if len(self._payloads) == pairing.chunks else []

    def lose(self) -> list[Effect]:
        """The partner is gone."""
        if self.is_over:
            return []
        self.is_over = True
        self._payloads.clear()
        return [Tell(PartnerLost(self._pairing.partner))]

    def tick(self, now: float) -> list[Effect]:
        """Ask for what is missing, or give up."""
        pairing = self._pairing
        if self.is_over or not self._silence.is_due(now, pairing.partner, self._patience):
            return []
        if self._silence.is_given_up(pairing.partner):
            return self.lose()
        missing = tuple(index for index in range(pairing.chunks) if index not in self._payloads)
        return [Send(pairing.partner, Want(pairing.round, pairing.part, pairing.number, missing, ()))]

    # -- inside ---------------------------------------------------------------------------------------------

    def _check_chunk(self, sender: PeerId, message: Contribution) -> None:
        if message.chunk >= self._pairing.chunks:
            raise RemoteError(f"names chunk {message.chunk} of {self._pairing.chunks}", sender)
        try:
            self._check(message.chunk, message.payload)
        except PayloadError as error:
            raise PayloadError(f"sent bad bytes of chunk {message.chunk}: {error.reason}", sender) from error

    def _repeat(self, sender: PeerId, message: Want) -> list[Effect]:
        wanted = dict.fromkeys(message.contributions)
        if any(index >= self._pairing.chunks for index in wanted):
            raise RemoteError(f"asks for more than our {self._pairing.chunks} chunks", sender)
        return [self._chunk(index) for index in wanted]

    def _chunk(self, index: int) -> Send:
        pairing = self._pairing
        payload = self._contribution(index)
        return Send(pairing.partner, Contribution(pairing.round, pairing.part, pairing.number, index, EPOCH, payload))

    def _finish(self) -> list[Effect]:
        self.is_over = True
        payloads = tuple(self._payloads[index] for index in range(self._pairing.chunks))
        self._payloads.clear()
        return [Tell(Exchanged(self._pairing.partner, payloads))]
