"""Each rule of the cores is needed: if it is taken out, the simulator names the promise that breaks.

A mutation is a patch of one rule. It runs on a few seeds that were found by search. On all of them the sound cores
pass; on at least one the oracle must name the promise that the mutation breaks, and on none another promise. Any other
exception is a failure: it would mean that luck, and not the oracle, has caught the mutation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from shoal.protocol.base.effects import Effect, Persist, Tell
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.signing import Signer
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.rounds import Assignment, Certificate, Contribution, Join, Roster
from shoal.protocol.rounds import attempt, outcome, rounds
from shoal.protocol.rounds import round as one_round
from shoal.protocol.rounds.agreement import certificate, roster
from shoal.protocol.rounds.agreement.voting import Tally, VoteState
from shoal.protocol.rounds.allreduce import allreduce, owned, ownership
from shoal.protocol.rounds.commit import commit
from shoal.protocol.rounds.commit.commit import Commit, Decided
from shoal.protocol.rounds.matchmaking import gathering, matchmaking
from tests.simulation import scenarios, single_death
from tests.simulation.promises import PROMISES, Violation

Patch = Callable[[pytest.MonkeyPatch], None]


def commit_without_a_majority(patch: pytest.MonkeyPatch) -> None:
    """One vote is enough for a leader."""
    patch.setattr(Tally, "decided", lambda self, voters, leaves: bool(self.votes))


def ignore_prepared_values(patch: pytest.MonkeyPatch) -> None:
    """A new leader proposes what it likes, whatever was prepared before."""
    for module in (commit, attempt, gathering):
        patch.setattr(module, "must_propose", lambda answers, leaves, voters: None)


def join_twice(patch: pytest.MonkeyPatch) -> None:
    """A member that loses its leader joins the next one in the same attempt."""
    sound = matchmaking.Matchmaking.enter

    def enter(self: matchmaking.Matchmaking, now: float, number: int) -> list[Effect]:
        lost = self.leader not in (None, self._me) and not self._view.is_alive(self.leader or self._me)
        if number == self.attempt + 1 and lost:
            self._vote.attempt = self.attempt - 1
            return sound(self, now, self.attempt)
        return sound(self, now, number)

    patch.setattr(matchmaking.Matchmaking, "enter", enter)


def roster_without_the_old_quorum(patch: pytest.MonkeyPatch) -> None:
    """A leader closes its group without a quorum, and everybody follows."""
    for module in (gathering, roster):
        patch.setattr(module, "is_quorum", lambda present, voters, left=(): True)


def count_a_contributor_twice(patch: pytest.MonkeyPatch) -> None:
    """A contribution that comes again is added again."""
    sound = owned.OwnedChunk.add

    def add(self: owned.OwnedChunk, peer: PeerId, payload: bytes) -> list:
        if peer in self._counted and not self.is_complete:
            self._sum.add(self._weights[peer], payload)
        return sound(self, peer, payload)

    patch.setattr(owned.OwnedChunk, "add", add)


def apply_before_commit(patch: pytest.MonkeyPatch) -> None:
    """A member that holds the bytes of a proposal takes it for decided."""
    sound = Commit.bytes_held

    def bytes_held(self: Commit) -> list[Effect]:
        value = self.value
        assert value is not None
        return [*sound(self), Tell(Decided(Certificate(value.ballot, value.proposal, (), ()), value.chunks))]

    patch.setattr(Commit, "bytes_held", bytes_held)


def accept_a_stale_round(patch: pytest.MonkeyPatch) -> None:
    """A contribution counts in any round in which it arrives."""
    sound = rounds.Rounds.receive

    def receive(self: rounds.Rounds, now: float, sender: PeerId, message: Message) -> list[Effect]:
        if isinstance(message, Contribution) and self._round is not None and message.round < self._round.number:
            return self._digest(self._round.receive(now, sender, message))
        return sound(self, now, sender, message)

    patch.setattr(rounds.Rounds, "receive", receive)


def accept_a_stale_epoch(patch: pytest.MonkeyPatch) -> None:
    """The last move of a chunk that arrives counts, not the last that was made."""

    def follow(self: ownership.Ownership, move: Assignment) -> PeerId | None:
        before = self._owners[move.chunk]
        self._owners[move.chunk], self._epochs[move.chunk] = move.owner, move.epoch
        return before

    patch.setattr(ownership.Ownership, "follow", follow)


def forget_to_reassign(patch: pytest.MonkeyPatch) -> None:
    """A dead owner's chunks stay with it."""
    patch.setattr(allreduce.AllReduce, "reassignment", lambda self, ballot, sequence, everything: None)


def keep_the_weight_of_the_dead(patch: pytest.MonkeyPatch) -> None:
    """After a death the weights are read in the order of those that are left."""
    sound = owned.OwnedChunk.lose

    def lose(self: owned.OwnedChunk, peer: PeerId) -> list:
        left = [other for other in self._order if other != peer]
        self._weights |= dict(zip(left, [self._weights[other] for other in self._order], strict=False))
        return sound(self, peer)

    patch.setattr(owned.OwnedChunk, "lose", lose)


def drop_the_residual(patch: pytest.MonkeyPatch) -> None:
    """A member of the group takes itself to be counted in every chunk."""
    patch.setattr(outcome, "in_mask", lambda mask, index: True)


def put_new_voters_first(patch: pytest.MonkeyPatch) -> None:
    """The next voters are in the order of the roster, even if old voters are among them."""

    def next_voters(base: roster.Base, members: Sequence[PeerId], gone: Sequence[PeerId]) -> tuple[PeerId, ...]:
        return tuple(peer for peer in members if peer not in gone)

    patch.setattr(certificate, "next_voters", next_voters)


def count_samples_of_the_dead(patch: pytest.MonkeyPatch) -> None:
    """The tokens of all members count, also of those that are in no mean."""
    patch.setattr(certificate, "counted_everywhere", lambda chunks, members: list(range(members)))


def vote_before_it_is_on_disk(patch: pytest.MonkeyPatch) -> None:
    """A vote is sent before it is on disk."""
    sound = Commit.bytes_held
    patch.setattr(Commit, "bytes_held", lambda self: [each for each in sound(self) if not isinstance(each, Persist)])


def forget_the_record(patch: pytest.MonkeyPatch) -> None:
    """A member that starts again takes part in the open round as if it had never voted in it."""
    patch.setattr(VoteState, "resume", lambda round, part, record: VoteState(round, part))


def let_another_state_in(patch: pytest.MonkeyPatch) -> None:
    """A member gets into the group whatever state it has."""
    sound_add, sound_check = gathering.Gathering.add, roster.check_roster

    def add(self: gathering.Gathering, now: float, join: Join) -> bool:
        base, self._base = self._base, dataclasses.replace(self._base, root=join.base_root)
        try:
            return sound_add(self, now, join)
        finally:
            self._base = base

    def check(group: Roster, base: roster.Base, policy: roster.Policy, signer: Signer) -> None:
        try:
            sound_check(group, base, policy, signer)
        except RemoteError as error:
            if "another state" not in error.reason:
                raise

    patch.setattr(gathering.Gathering, "add", add)
    patch.setattr(one_round, "check_roster", check)


@dataclass(frozen=True)
class Mutation:
    """A patch, the promise that it breaks, and the scenario and seeds that show it."""

    patch: Patch
    promise: str
    scenario: Callable[[int], object]
    seeds: Sequence[int]


MUTATIONS = [
    Mutation(commit_without_a_majority, "Agreement", scenarios.calm, (0, 1)),
    Mutation(ignore_prepared_values, "Agreement", scenarios.lost_commit, (2, 3, 9, 12)),
    Mutation(join_twice, "Agreement", scenarios.rival_leaders, (3, 7, 16, 17)),
    Mutation(roster_without_the_old_quorum, "Agreement", scenarios.split_vote, (9, 11, 27, 28)),
    Mutation(count_a_contributor_twice, "Validity", scenarios.echoes, (3, 4, 8, 9)),
    Mutation(apply_before_commit, "All or nothing", scenarios.calm, (0, 1)),
    Mutation(accept_a_stale_round, "Validity", scenarios.echoes, (41, 48, 52, 69)),
    Mutation(accept_a_stale_epoch, "Cheap loss", scenarios.two_deaths, (26, 28, 29, 46)),
    Mutation(forget_to_reassign, "Termination", single_death.run_death, (1, 4, 16, 18)),
    Mutation(keep_the_weight_of_the_dead, "Validity", single_death.run_death, (1, 4, 17, 18)),
    Mutation(put_new_voters_first, "Agreement", scenarios.calm, (0, 1)),
    Mutation(count_samples_of_the_dead, "Validity", single_death.run_death, (1, 4, 17, 18)),
    Mutation(vote_before_it_is_on_disk, "Agreement", scenarios.calm, (0, 1)),
    Mutation(forget_the_record, "Validity", scenarios.restarts, (2, 4, 5)),
    Mutation(let_another_state_in, "Fencing", scenarios.memory_hit, (0, 1, 2, 3)),
    Mutation(drop_the_residual, "Residual", scenarios.left_out, (1, 2, 3, 4)),
]


def test_every_promise_has_a_mutation() -> None:
    assert set(PROMISES) <= {mutation.promise for mutation in MUTATIONS}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.patch.__name__)
def test_a_missing_rule_is_missed_by_its_promise(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation.patch(monkeypatch)
    caught = [violation for seed in mutation.seeds if (violation := _violation(mutation, seed)) is not None]
    assert caught, "nobody missed it"
    assert {violation.promise for violation in caught} == {mutation.promise}, caught


def _violation(mutation: Mutation, seed: int) -> Violation | None:
    try:
        mutation.scenario(seed)
    except Violation as violation:
        return violation
    return None


@pytest.mark.parametrize(
    "scenario", {mutation.scenario: None for mutation in MUTATIONS}, ids=lambda scenario: scenario.__name__
)
def test_the_sound_cores_pass_where_the_mutated_ones_fail(scenario: Callable[[int], object]) -> None:
    for seed in sorted({seed for mutation in MUTATIONS if mutation.scenario is scenario for seed in mutation.seeds}):
        scenario(seed)
