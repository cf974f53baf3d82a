"""Matchmaking: how those who are ready for a round become a group, whoever is slow, wedged or gone.

Rules:
- The voters of the last round lead, in an order that nobody can choose (`roster.rank`); a member sends its one
  JOIN of an attempt to the first live one. If that leader dies, or is silent, the next attempt has another order.
- A leader waits for all live members that share its base, but not for ever (`gathering`). Without a quorum nobody
  closes anything: the run waits, and says for whom.
- Who is to lead and still trains is urged to hand in. If it has not after as long as a leader bears with the missing,
  and the others can go on without it, it steps aside: it sends them to an attempt that another leads.
- Whoever hears of a higher attempt moves up to it; whoever hears of a lower one says so.
- Who had nothing to offer, and has something now, takes its leader, or those who follow it, to the next attempt: a JOIN
  that is out stays what it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from shoal.protocol.base.effects import Effect, Event, Persist, Send, Tell, Timer, Wake
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.signing import signed
from shoal.protocol.messages.rounds import Call, CatchUp, Join, Leave, Noted, Retry, Roster
from shoal.protocol.rounds.agreement.certificate import check_value
from shoal.protocol.rounds.agreement.roster import Base, Offer, check_join
from shoal.protocol.rounds.agreement.voting import VoteState
from shoal.protocol.rounds.matchmaking.candidates import MAX_ATTEMPT_STEP, Candidates
from shoal.protocol.rounds.matchmaking.context import Means
from shoal.protocol.rounds.matchmaking.gathering import CALL_AWAY, HAND_IN, Gathering
from shoal.protocol.rounds.matchmaking.leaving import leave_of
from shoal.protocol.rounds.matchmaking.milestones import HandIn, Waiting

RETRY = 1.0  # seconds between repeats of a JOIN
RETRY_GROWTH, RETRY_MOST = 1 / 6, 15.0  # of one that is counted: of the time that we wait, and seconds
SILENCE = 5  # repeats without an answer before a leader counts as wedged


@dataclass(frozen=True, slots=True)
class GroupFormed(Event):
    """We lead, and our group is closed."""

    roster: Roster


@dataclass(frozen=True, slots=True)
class Astray(Event):
    """A quorum of the voters stands on another state than we do."""


class Matchmaking:
    """One round's matchmaking, over all its attempts, until a group is formed."""

    def __init__(self, means: Means, base: Base, vote: VoteState) -> None:
        self._me = means.me
        self._part = means.part
        self._policy = means.policy
        self._view = means.view
        self._signer = means.signer
        self._spread = means.spread
        self._base = base
        self._vote = vote
        self._gathering = Gathering(means, base)
        self.candidates = Candidates(means, base, vote)
        self._offer: Offer | None = None
        self._join: Join | None = None  # our own, of this attempt
        self._token = base.round << 20  # a timer of an earlier round is stale here
        self._silent = 0
        self._entered_at = -math.inf
        self._turned_away_at = -math.inf
        self._reason = ""
        self._has_stepped_aside = False  # we were to lead, and had nothing to hand in
        self.active = False
        self.attempt = 0
        self.leader: PeerId | None = None

    def __repr__(self) -> str:
        where = f"attempt={self.attempt}, leader={self.leader}, active={self.active}"
        return f"Matchmaking(round={self.round}, {where}, {self._gathering})"

    @property
    def round(self) -> int:
        """The round that is being matched."""
        return self._base.round + 1

    def late(self, roster: Roster) -> list[PeerId]:
        """Who sent us a JOIN but is not in `roster`."""
        return [peer for peer in self._gathering.peers() if all(join.peer != peer for join in roster.joins)]

    @property
    def has_offer(self) -> bool:
        """Whether we have submitted for this round."""
        return self._offer is not None

    def waiting_for(self) -> list[PeerId]:
        """Who is not ready yet: whose JOIN we miss as leader, else who last said that it still trains."""
        if not self.active:
            return []
        if self.leader == self._me:
            return self._gathering.missing(self.attempt, self.candidates.expected())
        return self.candidates.training()

    def pause(self, attempt: int) -> None:
        """A group was formed at `attempt`; matchmaking rests until it fails."""
        self.active, self.attempt = False, attempt
        self._reason, self._token = "", self._token + 1
        self._gathering.restart()

    # -- inputs ---------------------------------------------------------------------------------------------

    def submit(self, now: float, offer: Offer) -> list[Effect]:
        """We are ready: join the next attempt that is open to us; the one after this, if we offered less before."""
        is_another, self._offer = self.active and self._offer is not None, offer
        return self.move_up(now, self.attempt + 1) if is_another else self.enter(now, max(1, self.attempt))

    def keep(self, offer: Offer) -> None:
        """We have more to offer while a group is at work: it is for the next attempt, if there is one."""
        self._offer = offer

    def enter(self, now: float, attempt: int) -> list[Effect]:
        """Join `attempt`, or the first after it that is open to us: promise, sign, follow its leader."""
        if self._offer is None or self._vote.is_sealed:
            return []
        if self.attempt:
            self._gathering.restart()
        attempt = max(attempt, self._vote.attempt + 1)
        attempt = max(attempt, self.candidates.after_leaves(attempt + MAX_ATTEMPT_STEP))
        self.active = True
        self.attempt, self.leader = attempt, self.candidates.leader(attempt)
        self._silent, self._token, self._entered_at = 0, self._token + 1, now
        self._vote.join(attempt)
        self._join = self._sign_join(self._offer, attempt, self.leader)
        effects: list[Effect] = [Persist(f"vote-{self._part}", self._vote.record()), self._wake(RETRY)]
        if self.leader != self._me:
            return [*effects, *self._goodbye(self.leader), Send(self.leader, self._join)]
        self._gathering.add(now, self._join)
        return effects + self._close_if_due(now)

    def receive_join(self, now: float, join: Join) -> list[Effect]:
        """A JOIN to us as leader; it may come before we are ready ourselves."""
        self.check_join(join)
        if self._vote.is_sealed or self._vote.has_left:
            return self._turn_away(now, join)
        if join.attempt < self.attempt:
            return [self._retry(join.peer, self.attempt)]
        is_first = self._gathering.opened_at is None
        if not self._gathering.add(now, join):
            return []
        effects: list[Effect] = [Send(join.peer, Noted(self.round, self._part, join.attempt))]
        if self._gathering.are_we_astray():
            effects.append(Tell(Astray()))
        if not self.active:
            effects += [self._wake(self._gathering.patience())] if is_first else []
            return effects + (self._step_aside() if self._has_stepped_aside else [])
        if join.attempt > self.attempt:
            return effects + self.move_up(now, join.attempt)
        return effects + self._close_if_due(now)

    def receive_noted(self, sender: PeerId, message: Noted) -> list[Effect]:
        """Our leader lives and counts us."""
        if sender == self.leader and message.attempt == self.attempt:
            self._silent = 0
        return []

    def receive_call(self, now: float, sender: PeerId, message: Call) -> list[Effect]:
        """Somebody leads, and waits for us."""
        if sender not in self._base.voters:
            raise RemoteError("calls us together without a vote", sender)
        if not self.active:  # a call away comes sooner than the slack is over
            return [Tell(HandIn(self.round))] if message.attempt == HAND_IN or not self._policy.slack else []
        if message.attempt < self.attempt:
            return [self._retry(sender, self.attempt)] if message.attempt != HAND_IN else []
        if message.attempt > self.attempt or sender == self.leader:
            return self.move_up(now, message.attempt)
        return [self._retry(sender, self.attempt + 1), *self.move_up(now, self.attempt + 1)]

    def receive_retry(self, now: float, sender: PeerId, attempt: int) -> list[Effect]:
        """Somebody is in `attempt`."""
        behind = self.active and attempt < self.attempt
        return [self._retry(sender, self.attempt)] if behind else self.move_up(now, attempt)

    def move_up(self, now: float, attempt: int) -> list[Effect]:
        """Follow others to a higher attempt, and tell those whom we leave behind."""
        if not self.active or not self.attempt < attempt <= self.attempt + MAX_ATTEMPT_STEP:
            return []
        behind = [self.leader] if self.leader not in (None, self._me) else []
        behind += self._gathering.below(attempt)
        effects: list[Effect] = [self._retry(peer, attempt) for peer in dict.fromkeys(behind) if peer is not None]
        return effects + self.enter(now, attempt)

    def receive_leaves(self, now: float, leaves: Iterable[Leave]) -> list[Effect]:
        """Some have signed off; checked to be of this round."""
        self.candidates.sign_off(leaves)
        effects = self.move_up(now, self.candidates.after_leaves(self.attempt + MAX_ATTEMPT_STEP))
        return effects + self._close_if_due(now)

    def peer_changed(self, now: float) -> list[Effect]:
        """Somebody came or went."""
        if not self.active:
            return []
        if self.candidates.may_replace(self.leader):
            return self.enter(now, self.attempt + 1)
        return self._close_if_due(now)

    def fire(self, now: float, timer: Timer) -> list[Effect]:
        """Our repeat timer."""
        if timer.token != self._token:
            return []
        if not self.active:
            return self._urge(now)
        if self.leader == self._me:
            return [*self._close_if_due(now), self._wake(self._spread.deadline() / 4)]
        assert self.leader is not None
        assert self._join is not None
        is_wedged = self._silent >= SILENCE and self._view.is_alive(self.leader)
        if is_wedged or self.candidates.may_replace(self.leader):
            return self.enter(now, self.attempt + 1)
        pause = RETRY if self._silent else min(RETRY_MOST, max(RETRY, RETRY_GROWTH * (now - self._entered_at)))
        self._silent = min(self._silent + 1, SILENCE)
        leaves = [Send(self.leader, leave) for leave in self.candidates.pass_on(self.attempt)]
        return [*leaves, Send(self.leader, self._join), self._wake(pause * (1 + self._silent / 2))]

    # -- inside ---------------------------------------------------------------------------------------------

    def _urge(self, now: float) -> list[Effect]:
        """We are to lead, and still train."""
        opened, patience = self._gathering.opened_at, self._gathering.patience()
        if opened is None:
            return []
        aside = self._step_aside() if now - opened >= CALL_AWAY * patience else []
        return aside or [Tell(HandIn(self.round)), self._wake(patience)]

    def _step_aside(self) -> list[Effect]:
        """Send all who follow us to the next attempt that another leads, if they can go on without us."""
        if not self._gathering.can_do_without_us(self.candidates.expected(), self.candidates.leaves()):
            return []
        self.attempt = self.candidates.next_without_us(self._gathering.highest())
        self._has_stepped_aside, self._token = True, self._token + 1
        self._gathering.restart()
        return [self._retry(peer, self.attempt) for peer in self._gathering.below(self.attempt)]

    def _turn_away(self, now: float, join: Join) -> list[Effect]:
        """We cannot lead. Said once in a while: two like us would send each other on as fast as words travel."""
        if now - self._turned_away_at < RETRY:
            return []
        self._turned_away_at = now
        return [*self._goodbye(join.peer), self._retry(join.peer, join.attempt + 1)]

    def _goodbye(self, to: PeerId) -> list[Effect]:
        return [Send(to, leave_of(self._vote, self._signer))] if self._vote.has_left else []

    def check_join(self, join: Join) -> None:
        """RemoteError for a JOIN to us that no honest peer sends, in whatever attempt we are."""
        if join.leader != self._me:
            raise RemoteError("sent us a JOIN for somebody else", join.peer)
        check_join(join, self._policy, self._signer)
        if not 0 < join.attempt <= self.attempt + MAX_ATTEMPT_STEP:
            raise RemoteError(f"joins attempt {join.attempt}, far from anybody", join.peer)
        if join.base_history != self._base.history:
            raise RemoteError("joins from another history than the group's", join.peer)
        if join.prepared is not None:
            check_value(join.prepared, self._base, self._policy.chunks_in(self.round), join.peer)

    def _sign_join(self, offer: Offer, attempt: int, leader: PeerId) -> Join:
        base, vote = self._base, self._vote
        join = Join(
            round=self.round,
            part=self._part,
            attempt=attempt,
            leader=leader,
            peer=self._me,
            base_history=base.history,
            base_root=base.root,
            weight=offer.weight,
            up=offer.up,
            down=offer.down,
            reachable=offer.standing.reachable,
            apart=offer.standing.apart,
            votes=not vote.has_left,
            prepared=None if vote.has_left else vote.prepared,
            signature=b"",
        )
        return signed(join, self._signer)

    def _close_if_due(self, now: float) -> list[Effect]:
        if not self.active or self.leader != self._me or self._gathering.opened_at is None:
            return []
        outlook = self._gathering.look(now, self.attempt, self.candidates.expected(), self.candidates.leaves())
        if outlook.roster is not None:
            self.pause(self.attempt)
            catch_up = [Send(peer, CatchUp(self.round, self._part)) for peer in self._gathering.strays()]
            return [*catch_up, Tell(GroupFormed(outlook.roster))]
        effects: list[Effect] = [Tell(Waiting(outlook.reason))] if outlook.reason not in ("", self._reason) else []
        self._reason = outlook.reason
        effects += [self._retry(peer, self.attempt) for peer in outlook.elsewhere]
        if outlook.call is not None and self._me in self._base.voters:  # if they all have left, nobody may call
            call = Call(self.round, self._part, outlook.call)
            effects += [Send(peer, call) for peer in outlook.missing]
        return effects

    def _retry(self, peer: PeerId, attempt: int) -> Send:
        return Send(peer, Retry(self.round, self._part, attempt))

    def _wake(self, after: float) -> Wake:
        return Wake(after, Timer("matchmaking", "retry", self._token, str(self._part)))
