"""The rounds of one replica, one after the other.

    open(round) ──► ReplicaRound ──► Exchanged or Lapsed ──► the application applies it ──► applied ──► next round

Rules: a MEET for a later round waits until we are there, and hurries us; to one of an earlier round we say that it is
past; who by its own status is nobody's partner (it does not train, or holds no replica of this run) is refused. When
most of the others, and whom we should meet, stand two rounds or more beyond us, the rounds between lapse. Whoever still
asks for the word that its bytes are here, gets it also in later rounds.
"""

from __future__ import annotations

import dataclasses
from collections import deque

from shoal.protocol.base.effects import Effect, Send, Tell, Timer, Wake
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.replicas import Decline, Later, Meet, Refusal, Took, Want
from shoal.protocol.replicas.context import Means, near, pack, standing, stands
from shoal.protocol.replicas.events import Lapse, Lapsed
from shoal.protocol.replicas.meeting import Draw
from shoal.protocol.replicas.pair import PAIR_MESSAGES, Exchanged, Pairing
from shoal.protocol.replicas.round import ReplicaRound

TICK = 0.5  # seconds
KEPT = 16  # pairings that are remembered once they are over

REPLICA_MESSAGES = Meet | Decline | Later | PAIR_MESSAGES


@dataclasses.dataclass(frozen=True, slots=True)
class Early:
    """A MEET for a later round."""

    round: int
    number: int
    since: float
    is_urgent: bool


class ReplicaRounds:
    """One member's rounds."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._early: dict[PeerId, Early] = {}
        self._drawn: dict[int, PeerId | None] = {}  # whom we should meet in later rounds
        self._done: deque[Pairing] = deque(maxlen=KEPT)
        self._token = 0
        self._may_leap = False  # over any number of rounds, as we have just copied a replica
        self.round: ReplicaRound | None = None
        self.outcome: int | None = None  # the round whose outcome the application is about to take

    def __repr__(self) -> str:
        return f"ReplicaRounds({self.round}, applying={self.outcome}, {len(self._early)} early)"

    # -- read side ------------------------------------------------------------------------------------------

    @property
    def base(self) -> int | None:
        """After which round our replica stands; None before it is here and while an outcome is applied."""
        return self.round.number - 1 if self.round is not None and self.outcome is None else None

    @property
    def phase(self) -> str:
        """A word for status: syncing, training, matching, exchanging or applying."""
        if self.outcome is not None:
            return "applying"
        return self.round.phase if self.round is not None else "syncing"

    @property
    def hangs_on_others(self) -> bool:
        """Whether somebody must come, or send, before we go on; not while the run waits for more members."""
        round = self.round
        return round is not None and round.phase != "training" and not round.is_short

    def waiting_for(self) -> list[PeerId]:
        """Whom the current round hangs on."""
        return self.round.waiting_for() if self.round is not None else []

    def lead(self) -> int:
        """How many rounds most of the others are beyond us; 0 while that is of no interest."""
        base, others = self.base, pack(standing(self._means.view, self._means.facts).values())
        is_busy = self.round is not None and self.round.phase == "exchanging"
        return max(0, others - base) if base is not None and others is not None and not is_busy else 0

    # -- commands -------------------------------------------------------------------------------------------

    def open(self, now: float, base: int, *, may_leap: bool = False) -> list[Effect]:
        """Our replica is that after round `base`."""
        effects = self._close()
        self._means.outbox.open()
        self.round, self.outcome, self._may_leap = ReplicaRound(self._means, base), None, may_leap
        self._token += 1
        self._drawn.clear()
        return [*effects, self._wake(), *self._take_early(now, self.round), *self._leap()]

    def submit(self, now: float) -> list[Effect]:
        """Our inner steps are done, and the application has what we exchange."""
        if self.base is None or self.round is None:
            return []
        return self._digest(self.round.submit(now))

    def applied(self, now: float) -> list[Effect]:
        """The outcome that we were told of is taken."""
        assert self.outcome is not None
        return self.open(now, self.outcome)

    def suspend(self) -> list[Effect]:
        """Another replica is about to be installed, or we leave: nothing happens until `open`."""
        effects = self._close()
        self.round = self.outcome = None
        return effects

    def peer_down(self, now: float, peer: PeerId) -> list[Effect]:
        """Membership has given `peer` up."""
        self._early.pop(peer, None)
        self._drawn.clear()
        if self.round is None or self.outcome is not None:
            return []
        return self._digest(self.round.peer_down(now, peer))

    def peer_up(self, now: float) -> list[Effect]:
        """Membership has found somebody, or has news of it."""
        if self.round is None or self.outcome is not None:
            return []
        return self._digest(self.round.peer_up(now))

    # -- inputs ---------------------------------------------------------------------------------------------

    def receive(self, now: float, sender: PeerId, message: REPLICA_MESSAGES) -> list[Effect]:
        """Any message of the rounds of replicas; from those whom membership does not know they are ignored."""
        round, view = self.round, self._means.view
        if not view.is_alive(sender):
            return []
        is_refused = round is None or not stands(view.status(sender), self._means.facts)
        if is_refused and isinstance(message, Meet):
            return [Send(sender, Decline(message.round, Refusal.ABSENT))]
        if round is None:
            return []
        if message.round > round.number:
            return self._on_early(now, sender, message, round.number)
        may_still_ask = isinstance(message, Want) and round.pairing is not None and sender == round.pairing.partner
        if message.round < round.number or (self.outcome is not None and not may_still_ask):
            return self._on_late(sender, message)
        return self._digest(round.receive(now, sender, message))

    def fire(self, now: float, timer: Timer) -> list[Effect]:
        """Our timer."""
        if timer.token != self._token or self.round is None:
            return []
        if self.outcome is not None:
            return [self._wake()]
        return [self._wake(), *self._digest(self.round.tick(now, self._is_urged(now))), *self._leap()]

    # -- inside ---------------------------------------------------------------------------------------------

    def _is_urged(self, now: float) -> bool:
        """Whether whom we should meet in a later round has waited for us for too long."""
        means, base = self._means, self.base
        if base is None:
            return False
        urgent = [(peer, each) for peer, each in self._early.items() if each.is_urgent]
        ours = [(peer, each) for peer, each in urgent if self._drawn_in(each.round) == peer]
        return any(now - each.since >= means.forbearance(base, peer) for peer, each in ours)

    def _drawn_in(self, round: int) -> PeerId | None:
        """Whom we should meet in a later round, as it seems now; drawn once in each of ours, as that is work."""
        if round not in self._drawn:
            means = self._means
            others = near(standing(means.view, means.facts), round - 1, means.facts.window)
            self._drawn[round] = Draw(means.facts.seed, round, means.me).partner(others)
        return self._drawn[round]

    def _take_early(self, now: float, round: ReplicaRound) -> list[Effect]:
        """The MEETs for this round are heard; whoever sent one has waited from now on only, as we could not come."""
        early, self._early = self._early, {}
        effects: list[Effect] = []
        for peer, each in early.items():
            if each.round > round.number:
                self._early[peer] = each
            elif each.round == round.number:
                effects += round.remember(now, peer, each.number)
            else:
                effects.append(Send(peer, Decline(each.round, Refusal.PAST)))
        return effects

    def _on_early(self, now: float, sender: PeerId, message: REPLICA_MESSAGES, ours: int) -> list[Effect]:
        facts = self._means.facts
        if isinstance(message, Meet) and message.round <= min(ours + facts.window, facts.limit):
            known = self._early.get(sender)
            since = known.since if known is not None and known.round == message.round else now
            self._early[sender] = Early(message.round, message.number, since, message.is_urgent)
        elif isinstance(message, Decline):
            self._early.pop(sender, None)
        return []

    def _on_late(self, sender: PeerId, message: REPLICA_MESSAGES) -> list[Effect]:
        """Somebody is in a round that is over for us."""
        if isinstance(message, Meet):
            partners = [each.partner for each in self._done if each.round == message.round]
            return [] if sender in partners else [Send(sender, Decline(message.round, Refusal.PAST))]
        if not isinstance(message, Want):
            return []
        key = (sender, message.round, message.number)
        is_done = any((each.partner, each.round, each.number) == key for each in self._done)
        if is_done and not message.chunks:
            return [Send(sender, Took(message.round, message.number))]
        return [Send(sender, Decline(message.round, Refusal.PAST))]

    def _leap(self) -> list[Effect]:
        """Pass over the rounds in which nobody is left, if they are few enough, or we can do no better."""
        lead, base = self.lead(), self.base
        last = self._means.facts.window if not self._may_leap else lead
        if base is None or self.round is None or not 2 <= lead <= last or not self.round.is_lonely:
            return []
        target = min(base + lead, self._means.facts.limit)
        return self._end(target, [*self.round.close(), Tell(Lapsed(target, Lapse.BEHIND))])

    def _digest(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, Tell) and isinstance(effect.event, Exchanged | Lapsed):
                return self._end(effect.event.round, effects)
        return effects

    def _end(self, round: int, effects: list[Effect]) -> list[Effect]:
        assert self.round is not None
        if self.round.pairing is not None and self.round.is_over:
            self._done.append(self.round.pairing)
        self.outcome = round
        return effects

    def _close(self) -> list[Effect]:
        return self.round.close() if self.round is not None else []

    def _wake(self) -> Wake:
        return Wake(TICK, Timer("replicas", "tick", self._token))
