"""Two peers exchange their vectors chunk by chunk, without a group and without a vote.

Rules: each gets the other's bytes whole or not at all, and once; a partner that is lost is told of, and what it had
sent is dropped; bytes that cannot be used name their sender. Who has everything says so (TOOK), and waits for the same
word: until then its own chunks may still be on their way, over a slow line. If that word does not come, because the
partner is gone, what it has sent counts all the same: applying may be one-sided, and `is_mutual` says so. Lost messages
are asked for again, ever more rarely, and only if they are not on their way. A partner may send or read slowly, but not
for ever: an exchange is over, as if it were lost, after as long as such usually take for each payload, and some more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shoal.protocol.averaging.headway import STUCK, Headway
from shoal.protocol.averaging.outbox import Key, Outbox
from shoal.protocol.averaging.silence import Stall
from shoal.protocol.base.effects import Effect, Event, Send, Tell, Withdraw
from shoal.protocol.base.errors import PayloadError, RemoteError
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message, Payload
from shoal.protocol.member.facts import PART
from shoal.protocol.messages.replicas import Busy, Chunk, Took, Want

SLOWEST = 60.0  # seconds that an exchange may take for each payload: the most, and before any has shown what is usual,
LEAST = 4.0  # and what every partner is given
REPEATS = 4  # times that the partner gets our vector again, if it asks for it, in all

PAIR_MESSAGES = Chunk | Want | Busy | Took


@dataclass(frozen=True, slots=True)
class Exchanged(Event):
    """The partner's whole vector is here; this is told at most once in a round."""

    round: int
    partner: PeerId
    payloads: tuple[Payload, ...]
    is_mutual: bool  # the partner has ours as well; else it perhaps has not


@dataclass(frozen=True, slots=True)
class PartnerLost(Event):
    """Nothing will come of this exchange."""

    partner: PeerId


@dataclass(frozen=True, slots=True)
class Pairing:
    """Which exchange: `number` tells apart those of one round, if a partner had to be replaced."""

    partner: PeerId
    round: int
    number: int
    chunks: int


def usual_length() -> Estimate:
    """Learns how long exchanges take for each payload, out or in; seconds."""
    return Estimate(initial=SLOWEST, floor=LEAST, ceiling=SLOWEST)


def key_of(message: Message) -> Key | None:
    """What a payload of ours is, without its bytes."""
    return (message.round, (message.number, message.chunk)) if isinstance(message, Chunk) else None


class PairExchange:
    """One side of one exchange."""

    def __init__(
        self,
        now: float,
        pairing: Pairing,
        check: Callable[[int, Payload], None],
        outbox: Outbox,
        pace: Estimate,
        length: Estimate,
    ) -> None:
        """`pace`: how long a live partner is silent; `length`: `usual_length`. Both learn from this exchange."""
        self.pairing = pairing
        self._check = check  # PayloadError for bytes that cannot be used
        self._outbox = outbox
        self._headway = Headway({pairing.partner: 2 * pairing.chunks}, now, pace)
        self._stall = Stall(now)
        self._length, self._pace = length, pace
        self._began, self._sent_before = now, outbox.sent_count
        self._payloads: dict[int, Payload] = {}
        self._repeats = REPEATS * pairing.chunks
        self._has_taken = False  # our partner, everything
        self.has_all = False
        self.is_over = False

    def __repr__(self) -> str:
        return f"PairExchange({self.pairing}, {len(self._payloads)} chunks, over={self.is_over})"

    @property
    def missing(self) -> tuple[int, ...]:
        """The partner's chunks that are not here yet."""
        return tuple(index for index in range(self.pairing.chunks) if index not in self._payloads)

    def start(self, now: float) -> list[Effect]:
        """Send our vector."""
        return self._noted(now, [self._chunk(index) for index in range(self.pairing.chunks)])

    def receive(self, now: float, sender: PeerId, message: PAIR_MESSAGES) -> list[Effect]:
        """The partner's bytes; its request for ours, which is answered also when we are done; how far it has come."""
        pairing = self.pairing
        if sender != pairing.partner:
            raise RemoteError("is not our partner", sender)
        if (message.round, message.number) != (pairing.round, pairing.number):
            return []
        match message:
            case Want():
                return self._repeat(now, message)
            case Busy():
                self._headway.hear(now, sender, progress=False)
                self._headway.report(now, sender, message, may_wait=False)
                return []
            case Took():
                self._headway.hear(now, sender, progress=not self._has_taken)
                self._has_taken = True
                return self._finish_if_done(now)
        return self._take(now, message)

    def lose(self) -> list[Effect]:
        """The partner is gone, or good for nothing more: if all its bytes are here they count, else none do."""
        if self.is_over:
            return []
        if self.has_all:
            return self._finish()
        self.is_over = True
        self._payloads.clear()
        return [Withdraw(PART, self.pairing.round), Tell(PartnerLost(self.pairing.partner))]

    def tick(self, now: float) -> list[Effect]:
        """Ask for what is missing, or for the word that ours is there; or give up."""
        pairing = self.pairing
        if self.is_over:
            return []
        if self._is_hopeless(now):
            return self.lose()
        if now - self._began >= STUCK * self._pace.deadline() + 2 * pairing.chunks * self._length.deadline():
            self._learn(now)
            return self.lose()
        if not self._headway.is_due(now, pairing.partner):
            return []
        return [Send(pairing.partner, Want(pairing.round, pairing.number, self.missing))]

    # -- inside ---------------------------------------------------------------------------------------------

    def _is_hopeless(self, now: float) -> bool:
        """It is silent, or owes us bytes and has stopped; or nothing moves."""
        partner, outbox = self.pairing.partner, self._outbox
        if self._headway.is_given_up(now, partner, owes_bytes=not self.has_all):
            return True
        patience, length = self._headway.longest_patience(), self._length.deadline()
        if outbox.holds(partner, self.pairing.round):  # a payload of ours may need that long to leave
            patience = max(patience, length)
        return self._stall.is_long(now, (outbox.moved, len(self._payloads)), STUCK * patience)

    def _learn(self, now: float) -> None:
        """From the payloads that have moved; so after one that was too slow the next is given more."""
        moved = self._outbox.sent_count - self._sent_before + len(self._payloads)
        if moved:
            self._length.observe(min(SLOWEST, (now - self._began) / moved))

    def _take(self, now: float, message: Chunk) -> list[Effect]:
        pairing, sender = self.pairing, self.pairing.partner
        if message.chunk >= pairing.chunks:
            raise RemoteError(f"names chunk {message.chunk} of {pairing.chunks}", sender)
        is_new = not self.is_over and message.chunk not in self._payloads
        if is_new:
            self._check_payload(message)
        self._headway.hear(now, sender, progress=is_new)
        if is_new:
            self._payloads[message.chunk] = message.payload
            self._outbox.taken_count += 1
        if self.is_over or len(self._payloads) < pairing.chunks:
            return []
        self.has_all = True
        return [self._took(), *self._finish_if_done(now)]

    def _check_payload(self, message: Chunk) -> None:
        try:
            self._check(message.chunk, message.payload)
        except PayloadError as error:
            raise PayloadError(
                f"sent bad bytes of chunk {message.chunk}: {error.reason}", self.pairing.partner
            ) from error

    def _repeat(self, now: float, message: Want) -> list[Effect]:
        pairing = self.pairing
        wanted = dict.fromkeys(message.chunks)
        if any(index >= pairing.chunks for index in wanted):
            raise RemoteError(f"asks for more than our {pairing.chunks} chunks", pairing.partner)
        self._headway.hear(now, pairing.partner, progress=False)
        fresh = self._outbox.fresh(now, [self._chunk(index) for index in wanted])[: self._repeats]
        self._repeats -= len(fresh)
        is_queued = self._outbox.holds(pairing.partner, pairing.round)
        counts = (self._outbox.sent_count, self._outbox.taken_count)
        busy = Busy(pairing.round, pairing.number, *counts, is_waiting=False, is_queued=is_queued)
        took = [self._took()] if self.has_all else []
        words = took if took and not wanted else [*took, Send(pairing.partner, busy)]
        return self._noted(now, [*fresh, *words])

    def _noted(self, now: float, effects: list[Effect]) -> list[Effect]:
        self._outbox.note(now, effects)
        return effects

    def _chunk(self, index: int) -> Effect:
        pairing = self.pairing
        message = Chunk(pairing.round, pairing.number, index, b"")
        return Send(pairing.partner, message, is_late=True)

    def _took(self) -> Send:
        return Send(self.pairing.partner, Took(self.pairing.round, self.pairing.number))

    def _finish_if_done(self, now: float) -> list[Effect]:
        if not self.has_all or not self._has_taken or self.is_over:
            return []
        self._learn(now)
        return self._finish()

    def _finish(self) -> list[Effect]:
        self.is_over = True
        payloads = tuple(self._payloads[index] for index in range(self.pairing.chunks))
        self._payloads.clear()
        return [Tell(Exchanged(self.pairing.round, self.pairing.partner, payloads, self._has_taken))]
