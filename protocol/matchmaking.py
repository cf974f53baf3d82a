"""Matchmaking: how those who are ready for a round become a group, whoever is slow, wedged or gone.

Rules:
- The voters of the last round lead, in an order that nobody can choose (`roster.rank`); a member sends its one
  JOIN of an attempt to the first live one. If that leader dies, or is silent, the next attempt has another order.
- A leader waits for all live members that share its base, but not for ever: when the learned patience is over it
  calls the late ones to hand in what they have, and after as long again it closes the group without them.
- Without a quorum, or with too few members, nobody closes anything: the run waits, and says for whom.
- Whoever hears of a higher attempt moves up to it; whoever hears of a lower one says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.protocol.effects import Effect, Event, Persist, Send, Tell, Timer, Wake
from shoal.protocol.errors import RemoteError
from shoal.protocol.estimate import Estimate
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.rounds import Call, Join, Leave, Noted, Retry, Roster
from shoal.protocol.messages.status import RunStatus
from shoal.protocol.quorum import is_quorum
from shoal.protocol.roster import Base, Policy, check_join, rank
from shoal.protocol.signing import Signer, signed
from shoal.protocol.voting import VoteState, must_propose

RETRY = 1.0  # seconds between repeats of a JOIN
SILENCE = 5  # repeats without an answer before a leader counts as wedged
MAX_ATTEMPT_STEP = 64  # how far ahead of us an attempt may claim to be


class View(Protocol):
    """What matchmaking needs to know of membership."""

    def alive(self) -> Sequence[PeerId]:
        """Live members without ourselves, in a fixed order."""
        ...

    def is_alive(self, peer: PeerId) -> bool: ...

    def status(self, peer: PeerId) -> RunStatus | None: ...


@dataclass(frozen=True, slots=True)
class Offer:
    """What we bring to a round."""

    weight: int
    bandwidth: int
    reachable: bool


@dataclass(frozen=True, slots=True)
class GroupFormed(Event):
    """We lead, and our group is closed."""

    roster: Roster


@dataclass(frozen=True, slots=True)
class HandIn(Event):
    """The others wait: contribute what there is."""

    round: int


@dataclass(frozen=True, slots=True)
class Waiting(Event):
    """We lead, but no group can be closed, and why."""

    reason: str


class Matchmaking:
    """One round's matchmaking, over all its attempts, until a group is formed."""

    def __init__(
        self,
        me: PeerId,
        part: int,
        base: Base,
        vote: VoteState,
        policy: Policy,
        view: View,
        signer: Signer,
        spread: Estimate,
    ) -> None:
        self._me = me
        self._part = part
        self._base = base
        self._vote = vote
        self._policy = policy
        self._view = view
        self._signer = signer
        self._spread = spread  # learned: from the first JOIN of a round to its last
        self._offer: Offer | None = None
        self._joins: dict[PeerId, Join] = {}
        self._leaves: dict[PeerId, Leave] = {}
        self._token = 0
        self._silent = 0
        self._opened_at: float | None = None
        self._called = False
        self._reason = ""
        self.active = False
        self.attempt = 0
        self.first_attempt = 0  # with what we have submitted; earlier ones were of an earlier life
        self.leader: PeerId | None = None

    @property
    def round(self) -> int:
        """The round that is being matched."""
        return self._base.round + 1

    def late(self, roster: Roster) -> list[PeerId]:
        """Who sent us a JOIN but is not in `roster`."""
        members = [join.peer for join in roster.joins]
        return [peer for peer in self._joins if peer not in members and peer != self._me]

    def leaves(self) -> tuple[Leave, ...]:
        """The voters that signed off from this round on."""
        return tuple(self._leaves[peer] for peer in sorted(self._leaves))

    def left(self) -> tuple[PeerId, ...]:
        """Their names."""
        return tuple(sorted(self._leaves))

    @property
    def has_offer(self) -> bool:
        """Whether we have submitted for this round."""
        return self._offer is not None

    def pause(self, attempt: int) -> None:
        """A group was formed at `attempt`; matchmaking rests until it fails."""
        self.active, self.attempt = False, attempt
        self._opened_at, self._reason, self._token = None, "", self._token + 1

    # -- inputs ---------------------------------------------------------------------------------------------

    def submit(self, now: float, offer: Offer) -> list[Effect]:
        """We are ready: join the next attempt that is open to us."""
        self._offer = offer
        self.active = True
        self.first_attempt = max(1, self.attempt, self._vote.attempt + 1)
        return self.enter(now, self.first_attempt)

    def enter(self, now: float, attempt: int) -> list[Effect]:
        """Join `attempt`: promise, sign, follow its leader."""
        if self._offer is None or not self._vote.may_join(attempt):
            return []
        self.active = True
        self.attempt, self.leader = attempt, self._choose_leader(attempt)
        self._silent, self._called, self._token = 0, False, self._token + 1
        self._vote.join(attempt)
        join = self._sign_join(self._offer, attempt, self.leader)
        effects: list[Effect] = [Persist(f"vote-{self._part}", self._vote.record())]
        if self.leader == self._me:
            return effects + self._record(now, join) + [self._wake(RETRY)] + self._close_if_due(now)
        self._joins[self._me] = join
        return [*effects, Send(self.leader, join), self._wake(RETRY)]

    def receive_join(self, now: float, join: Join) -> list[Effect]:
        """A JOIN to us as leader, checked to be of this round; it may come before we are ready ourselves."""
        check_join(join, self._policy, self._signer)
        if join.attempt > max(self.attempt, self._vote.attempt) + MAX_ATTEMPT_STEP:
            raise RemoteError(f"joins attempt {join.attempt}, far ahead of anybody", join.peer)
        if (join.base_history, join.base_root) != (self._base.history, self._base.root):
            raise RemoteError("joins from a state that is not the group's; it must catch up first", join.peer)
        if self.active and join.attempt < self.attempt:
            return [Send(join.peer, Retry(self.round, self._part, self.attempt))]
        effects = self._record(now, join)
        if self.active and join.attempt > self.attempt:
            return effects + self.move_up(now, join.attempt)
        return effects + self._close_if_due(now)

    def receive_noted(self, sender: PeerId, message: Noted) -> list[Effect]:
        """Our leader lives and counts us."""
        if sender == self.leader and message.attempt == self.attempt:
            self._silent = 0
        return []

    def move_up(self, now: float, attempt: int) -> list[Effect]:
        """Follow others to a higher attempt, and tell those whom we leave behind."""
        if not self.active or attempt <= self.attempt or attempt > self.attempt + MAX_ATTEMPT_STEP:
            return []
        behind = [self.leader] if self.leader not in (None, self._me) else []
        behind += [peer for peer, join in self._joins.items() if join.attempt < attempt and peer != self._me]
        retry = Retry(self.round, self._part, attempt)
        effects: list[Effect] = [Send(peer, retry) for peer in behind if peer is not None]
        return effects + self.enter(now, attempt)

    def receive_leaves(self, now: float, leaves: Iterable[Leave]) -> list[Effect]:
        """Voters have signed off; checked to be of this round."""
        self._leaves.update({leave.peer: leave for leave in leaves})
        return self._close_if_due(now)

    def peer_changed(self, now: float) -> list[Effect]:
        """Somebody came or went."""
        if not self.active:
            return []
        if self.leader != self._me and self.leader is not None and not self._view.is_alive(self.leader):
            return self.enter(now, self.attempt + 1)
        return self._close_if_due(now)

    def fire(self, now: float, timer: Timer) -> list[Effect]:
        """Our repeat timer."""
        if timer.token != self._token:
            return []
        if not self.active:
            return self._urge(now) if self._opened_at is not None else []
        if self.leader == self._me:
            return [*self._close_if_due(now), self._wake(self._spread.deadline() / 4)]
        assert self.leader is not None
        self._silent += 1
        if self._silent > SILENCE or not self._view.is_alive(self.leader):
            return self.enter(now, self.attempt + 1)
        return [Send(self.leader, self._joins[self._me]), self._wake(RETRY * (1 + self._silent / 2))]

    # -- inside ---------------------------------------------------------------------------------------------

    def _choose_leader(self, attempt: int) -> PeerId:
        voters = [voter for voter in self._base.voters if voter not in self._leaves]
        live = [voter for voter in voters if voter == self._me or self._view.is_alive(voter)]
        return rank(self._base, attempt, live or voters or [self._me])[0]

    def _sign_join(self, offer: Offer, attempt: int, leader: PeerId) -> Join:
        join = Join(
            round=self.round,
            part=self._part,
            attempt=attempt,
            leader=leader,
            peer=self._me,
            base_history=self._base.history,
            base_root=self._base.root,
            weight=offer.weight,
            bandwidth=offer.bandwidth,
            reachable=offer.reachable,
            prepared=self._vote.prepared,
            signature=b"",
        )
        return signed(join, self._signer)

    def _record(self, now: float, join: Join) -> list[Effect]:
        if join.leader != self._me:
            raise RemoteError("sent us a JOIN for somebody else", join.peer)
        known = self._joins.get(join.peer)
        if known is None or join.attempt > known.attempt:
            self._joins[join.peer] = join
        effects: list[Effect] = []
        if self._opened_at is None:
            self._opened_at = now
            if not self.active:
                effects.append(self._wake(self._spread.deadline()))
        if join.peer != self._me:
            effects.append(Send(join.peer, Noted(self.round, self._part, join.attempt)))
        return effects

    def _urge(self, now: float) -> list[Effect]:
        """Others wait for us, who are to lead, and we are still training."""
        return [Tell(HandIn(self.round)), self._wake(self._spread.deadline())]

    def _present(self) -> dict[PeerId, Join]:
        return {
            peer: join for peer, join in self._joins.items() if join.attempt == self.attempt and join.leader == self._me
        }

    def _expected(self) -> list[PeerId]:
        def shares_base(peer: PeerId) -> bool:
            status = self._view.status(peer)
            return peer in self._base.voters or (status is not None and status.history == self._base.history)

        return [peer for peer in self._view.alive() if peer not in self._leaves and shares_base(peer)]

    def _close_if_due(self, now: float) -> list[Effect]:
        if not self.active or self.leader != self._me or self._opened_at is None:
            return []
        present = self._present()
        reason = self._obstacle(present)
        if reason:
            told = reason == self._reason
            self._reason = reason
            return [] if told else [Tell(Waiting(reason))]
        missing = [peer for peer in self._expected() if peer not in present]
        waited, patience = now - self._opened_at, self._spread.deadline()
        if missing and waited < 2 * patience:
            if waited < patience or self._called:
                return []
            self._called = True
            return [Send(peer, Call(self.round, self._part)) for peer in missing]
        if not missing:
            self._spread.observe(waited)
        return self._close(present)

    def _obstacle(self, present: dict[PeerId, Join]) -> str:
        needed = self._policy.members_needed(self.round)
        if not is_quorum(present, self._base.voters, self.left()):
            absent = [voter for voter in self._base.voters if voter not in present]
            return f"no quorum: waiting for {', '.join(peer[-6:] for peer in absent)}"
        if len(present) < needed:
            return f"{len(present)} of at least {needed} members are here"
        adopted = must_propose(
            {peer: join.prepared for peer, join in present.items()}
            | {leave.peer: leave.prepared for leave in self.leaves()},
            self._base.voters,
            self.left(),
        )
        if adopted is not None and not is_quorum(present, adopted.proposal.voters, self.left()):
            return "no quorum of those who may have decided already"
        return ""

    def _close(self, present: dict[PeerId, Join]) -> list[Effect]:
        self.pause(self.attempt)
        joins = tuple(present[peer] for peer in rank(self._base, self.attempt, present))
        roster = Roster(self.round, self._part, self.attempt, self._me, joins, self.leaves(), b"")
        return [Tell(GroupFormed(signed(roster, self._signer)))]

    def _wake(self, after: float) -> Wake:
        return Wake(after, Timer("matchmaking", "retry", self._token, str(self._part)))
