"""One round at one member: it trains, finds a partner, exchanges with it; or there is no exchange.

    training ──submit──► matching ──both have asked──► exchanging ──► Exchanged
                            ▲   └─── nobody is left ──────────┼──────► Lapsed
                            └──────── partner lost ───────────┘

Rules: a partner's bytes count whole or not at all; a chunk, or a question for one, shows like a MEET that its sender
has taken ours, as they travel on other ways than words. Who sends bytes that cannot be used is named, and lost.
"""

from __future__ import annotations

from shoal.protocol.averaging.events import HandIn, Waiting
from shoal.protocol.base.effects import Blamed, Effect, Send, Tell, Withdraw
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.member.facts import PART
from shoal.protocol.messages.replicas import Decline, Later, Meet, Refusal, Want
from shoal.protocol.replicas.context import Means, standing
from shoal.protocol.replicas.events import Lapsed, Met
from shoal.protocol.replicas.matching import Matching, Suitor, pairing_number
from shoal.protocol.replicas.pair import PAIR_MESSAGES, PairExchange, Pairing, PartnerLost


class ReplicaRound:
    """One member's side of the round after `base`. Tells Exchanged or Lapsed once; then it is over."""

    def __init__(self, means: Means, base: int) -> None:
        self._means = means
        self._base = base
        self._matching = Matching(means, base)
        self._is_ready = False  # to exchange
        self._was_called = False  # to hand in
        self._reason = ""  # why we wait for more members
        self.exchange: PairExchange | None = None  # with our partner, once we have one
        self.is_over = False

    def __repr__(self) -> str:
        return f"ReplicaRound({self.number}, {self.phase}, {self._matching}, {self.exchange})"

    @property
    def number(self) -> int:
        """Which round this is."""
        return self._base + 1

    @property
    def phase(self) -> str:
        """training, matching or exchanging."""
        if self.exchange is not None:
            return "exchanging"
        return "matching" if self._is_ready else "training"

    @property
    def pairing(self) -> Pairing | None:
        """Which exchange it is, once one has begun."""
        return self.exchange.pairing if self.exchange is not None else None

    @property
    def is_short(self) -> bool:
        """Whether the run waits for more members."""
        return bool(self._reason)

    @property
    def is_lonely(self) -> bool:
        """Whether most likely nobody is left to meet in this round."""
        return self.exchange is None and self._matching.is_lonely()

    def waiting_for(self) -> list[PeerId]:
        """Whom this round hangs on."""
        asked = self._matching.asked
        return [asked.peer] if asked is not None and not self.is_over else []

    # -- commands -------------------------------------------------------------------------------------------

    def submit(self, now: float) -> list[Effect]:
        """Our inner steps are done."""
        if self._is_ready or self.is_over:
            return []
        self._is_ready = True
        return self._seek(now)

    def peer_down(self, now: float, peer: PeerId) -> list[Effect]:
        """Membership has given `peer` up, or it has left."""
        return self._do_without(now, peer, None)

    def peer_up(self, now: float) -> list[Effect]:
        """Membership has found somebody, or has news of it."""
        return self._seek(now)

    def close(self) -> list[Effect]:
        """The round's contribution may change from now on."""
        self.is_over = True
        return [Withdraw(PART, self.number)] if self.exchange is not None else []

    # -- inputs ---------------------------------------------------------------------------------------------

    def remember(self, now: float, sender: PeerId, number: int) -> list[Effect]:
        """A MEET that came before we were here; it may become urgent again."""
        return self._matching.hear(now, sender, number, False)

    def receive(self, now: float, sender: PeerId, message: Meet | Decline | Later | PAIR_MESSAGES) -> list[Effect]:
        """A message of this round, of a live member."""
        match message:
            case Meet():
                return self._on_meet(now, sender, message)
            case Decline():
                return self._do_without(now, sender, None)
            case Later():
                self._matching.put_off(now, sender)
                return []
        return self._on_exchange(now, sender, message)

    def tick(self, now: float, is_urged: bool) -> list[Effect]:
        """Time has passed; `is_urged`: somebody has waited for us for too long in a later round."""
        if self.is_over:
            return []
        if self.exchange is not None:
            return self._digest(now, self.exchange.tick(now))
        if not self._is_ready:
            return self._call(now, is_urged)
        return [*self._matching.tick(now), *self._seek(now)]

    # -- inside ---------------------------------------------------------------------------------------------

    def _call(self, now: float, is_urged: bool) -> list[Effect]:
        """Hand in, if others have waited for as long as they have patience."""
        if self._was_called or not (is_urged or self._matching.is_urged(now)):
            return []
        self._was_called = True
        return [Tell(HandIn(self.number))]

    def _seek(self, now: float) -> list[Effect]:
        """Ask somebody, if we should and do not yet."""
        matching = self._matching
        if not self._is_ready or self.exchange is not None or self.is_over or matching.asked is not None:
            return []
        if short := self._shortage():
            was, self._reason = self._reason, short
            return [Tell(Waiting(short))] if was != short else []
        self._reason = ""
        effects = matching.choose(now)
        if matching.asked is None:
            return self._lapse()
        suitor = matching.suitor(matching.asked.peer)
        return effects if suitor is None else [*effects, *self._engage(now, suitor)]

    def _shortage(self) -> str:
        facts = self._means.facts
        here, needed = 1 + len(standing(self._means.view, facts)), facts.policy.members_needed(self.number)
        return f"{here} of at least {needed} members are here" if here < needed else ""

    def _on_meet(self, now: float, sender: PeerId, message: Meet) -> list[Effect]:
        exchange, matching = self.exchange, self._matching
        if exchange is None:
            effects = matching.hear(now, sender, message.number, message.is_urgent)
            suitor, asked = matching.suitor(sender), matching.asked
            is_mutual = asked is not None and asked.peer == sender and suitor is not None
            return [*effects, *self._engage(now, suitor)] if is_mutual and suitor is not None else effects
        if sender != exchange.pairing.partner:
            return matching.exclude(sender, Refusal.ENGAGED)
        assert matching.asked is not None
        if pairing_number(matching.asked.number, message.number) == exchange.pairing.number:
            is_known = message.answers == matching.asked.number
            return [] if is_known else matching.repeat(now)
        return self._do_without(now, sender, Refusal.LOST)  # another life of our partner

    def _on_exchange(self, now: float, sender: PeerId, message: PAIR_MESSAGES) -> list[Effect]:
        asked, begun = self._matching.asked, list[Effect]()
        if self.exchange is None and asked is not None and asked.peer == sender:
            begun = self._begin(now, sender, message.number)
        exchange = self.exchange
        if exchange is None or sender != exchange.pairing.partner:
            return self._matching.exclude(sender, Refusal.LOST) if isinstance(message, Want) else []
        try:
            return [*begun, *self._digest(now, exchange.receive(now, sender, message))]
        except RemoteError as error:  # what has begun with it is told all the same
            blame = Tell(Blamed(sender, error.reason))
            return [*begun, blame, *self._do_without(now, sender, Refusal.LOST)]

    def _engage(self, now: float, suitor: Suitor) -> list[Effect]:
        asked = self._matching.asked
        assert asked is not None
        if self._matching.is_untroubled and not self._was_called:
            self._means.spread.observe(abs(asked.since - suitor.since))
        return self._begin(now, asked.peer, pairing_number(asked.number, suitor.number))

    def _begin(self, now: float, partner: PeerId, number: int) -> list[Effect]:
        means = self._means
        pairing = Pairing(partner, self.number, number, means.facts.chunks)
        exchange = PairExchange(now, pairing, means.facts.check, means.outbox, means.pace, means.length)
        self.exchange = exchange
        dismissed = self._matching.dismiss(partner)
        return [Tell(Met(partner)), *dismissed, *exchange.start(now)]

    def _do_without(self, now: float, peer: PeerId, reason: Refusal | None) -> list[Effect]:
        """Nothing comes of `peer` in this round; if it was our partner, perhaps all its bytes are here already."""
        if self.is_over:
            return []
        exchange = self.exchange
        if exchange is not None and exchange.pairing.partner == peer:
            told = self._digest(now, exchange.lose())
            return told if reason is None else [Send(peer, Decline(self.number, reason)), *told]
        return [*self._matching.exclude(peer, reason), *self._seek(now)]

    def _digest(self, now: float, effects: list[Effect]) -> list[Effect]:
        """The end of an exchange is that of the round, or a new search."""
        done: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Tell) and isinstance(effect.event, PartnerLost):
                self.exchange = None
                done += [*self._matching.exclude(effect.event.partner, Refusal.LOST), *self._seek(now)]
            else:
                done.append(effect)
        self.is_over |= self.exchange is not None and self.exchange.is_over
        return done

    def _lapse(self) -> list[Effect]:
        self.is_over = True
        return [*self._matching.dismiss(None), Tell(Lapsed(self.number, self._matching.reason))]
