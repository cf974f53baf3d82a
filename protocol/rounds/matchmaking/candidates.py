"""Who may lead a round's attempts, and whom a leader waits for, as far as we see: who lives, and who has signed off."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.membership import RunStatus
from shoal.protocol.messages.rounds import Leave
from shoal.protocol.rounds.agreement.roster import Base, rank
from shoal.protocol.rounds.agreement.voting import VoteState
from shoal.protocol.rounds.matchmaking.context import Means

MAX_ATTEMPT_STEP = 64  # how far ahead of us an attempt may claim to be


class Candidates:
    """The voters of the last round, less those who sign off from this one."""

    def __init__(self, means: Means, base: Base, vote: VoteState) -> None:
        self._me = means.me
        self._base = base
        self._entitled = frozenset(base.voters)
        self._vote = vote
        self._view = means.view
        self.followers = means.followers
        self._leaves: dict[PeerId, Leave] = {}
        self._passed_on = (0, 0)  # in which attempt, and how many

    def sign_off(self, leaves: Iterable[Leave]) -> None:
        """Some have signed off from this round."""
        self._leaves.update({leave.peer: leave for leave in leaves})

    def leaves(self) -> tuple[Leave, ...]:
        """Those who have signed off, in an order that all share."""
        return tuple(self._leaves[peer] for peer in sorted(self._leaves))

    def pass_on(self, attempt: int) -> tuple[Leave, ...]:
        """What the leader of `attempt` may not have heard, as it was away then: once, and again if there is more."""
        before, self._passed_on = self._passed_on, (attempt, len(self._leaves))
        return self.leaves() if self._passed_on != before else ()

    def after_leaves(self, below: int) -> int:
        """The first attempt in which all leaves count whose promises are for attempts below this one."""
        promised = [leave.promised.attempt for leave in self._leaves.values()]
        return 1 + max((attempt for attempt in promised if attempt < below), default=0)

    def leader(self, attempt: int) -> PeerId:
        """The first voter that lives; if none does, the first that might come back."""
        voters = self._voters()
        return rank(self._base, attempt, self._live(voters) or voters or [self._me])[0]

    def next_without_us(self, attempt: int) -> int:
        """The first attempt after this one in which another leads; the next one, if there is no other."""
        later = range(attempt + 1, attempt + MAX_ATTEMPT_STEP)
        return next((each for each in later if self.leader(each) != self._me), later[0])

    def may_replace(self, leader: PeerId | None) -> bool:
        """Whether `leader` is gone and a voter is there. Attempts in which none is would only take us far away."""
        return leader is not None and not self._live([leader]) and bool(self._live(self._voters()))

    def expected(self) -> list[PeerId]:
        """Who may come to this round: live members on our base; voters and some latecomers, whatever they stand on."""

        def may_come(peer: PeerId) -> bool:
            if peer in self._entitled or self.followers.is_due(peer, self._base.round + 1):
                return True
            status = self._view.status(peer)
            return status is not None and status.history == self._base.history

        return [peer for peer in self._view.alive() if peer not in self._leaves and may_come(peer)]

    def training(self) -> list[PeerId]:
        """Which of those last said that they still train for this round."""

        def trains(status: RunStatus | None) -> bool:
            return status is not None and status.phase == "training" and status.round == self._base.round

        return [peer for peer in self.expected() if trains(self._view.status(peer))]

    def _voters(self) -> list[PeerId]:
        gone = self._me if self._vote.has_left else None
        return [voter for voter in self._base.voters if voter not in self._leaves and voter != gone]

    def _live(self, voters: Iterable[PeerId]) -> list[PeerId]:
        return [voter for voter in voters if voter == self._me or self._view.is_alive(voter)]
