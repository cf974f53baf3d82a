"""Each rule of the rounds is needed: if it is taken out, the simulator names the promise that breaks.

A mutation runs on a few seeds that were found by search. On all of them the sound cores pass; on at least one the
oracle must name the promise that the mutation breaks, and on none another promise. Any other exception is a failure: it
would mean that luck, and not the oracle, has caught the mutation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from tests.simulation import mutations as rule
from tests.simulation import scenarios, single_death
from tests.simulation.promises import PROMISES, Violation


@dataclass(frozen=True)
class Mutation:
    """A patch, the promise that it breaks, and the scenario and seeds that show it."""

    patch: rule.Patch
    promise: str
    scenario: Callable[[int], object]
    seeds: Sequence[int]


MUTATIONS = [
    Mutation(rule.count_a_contributor_twice, "Validity", scenarios.echoes, (0, 1)),
    Mutation(rule.count_by_any_weight, "Validity", scenarios.weighs_more, (0, 1)),
    Mutation(rule.weigh_all_alike, "Validity", scenarios.calm, (0, 1)),
    Mutation(rule.take_a_mean_of_anybody, "Validity", scenarios.forged, (0, 1)),
    Mutation(rule.take_a_mean_without_its_bytes, "Agreement", scenarios.forged, (1, 2)),
    Mutation(rule.count_the_dead, "Validity", single_death.run_death, (0, 1, 15, 16)),
    Mutation(rule.drop_the_residual, "Residual", scenarios.left_out, (0, 1, 2)),
    Mutation(rule.take_offers_of_another_state, "Termination", scenarios.memory_hit, (0, 2)),
    Mutation(rule.add_what_was_trained_elsewhere, "Fencing", scenarios.memory_hit, (1, 2, 4)),
    Mutation(rule.vote_for_a_result_on_another_state, "Fencing", scenarios.proposer_hit, (0, 1, 2, 3)),
    Mutation(rule.apply_to_another_state, "All or nothing", scenarios.keeper_hit, (0, 1, 2)),
    Mutation(rule.vote_without_the_bytes, "Termination", scenarios.dead_with_the_last_bytes, (9, 13)),
    Mutation(rule.vote_before_the_last_is_kept, "Termination", scenarios.slow_disks, (1, 10)),
    Mutation(rule.propose_a_table_that_is_not_written, "Termination", scenarios.dead_with_the_last_bytes, (1, 4)),
    Mutation(rule.send_means_that_are_not_written, "Held", scenarios.killed_at_once, (0, 1)),
    Mutation(rule.forget_the_means_of_before, "Held", scenarios.killed_at_once, (0, 1)),
    Mutation(rule.forget_the_last_result, "Held", scenarios.killed_as_one_has_applied, (2, 3)),
    Mutation(rule.never_undo, "Termination", scenarios.power_cut_at_once, (0, 1)),
    Mutation(rule.undo_what_is_only_late, "Termination", scenarios.dead_with_the_last_bytes, (11, 17)),
    Mutation(rule.count_no_lacks, "Held", scenarios.lacked_by_one, (0, 2)),
    Mutation(rule.accept_a_stale_epoch, "Cheap loss", scenarios.deaths_in_a_row, (11, 20)),
    Mutation(rule.forget_to_reassign, "Termination", single_death.run_death, (0, 1)),
    Mutation(rule.send_again_unasked, "Cheap loss", single_death.run_death, (0, 1, 15)),
    Mutation(rule.wait_for_the_dead, "Termination", single_death.run_death, (0, 1)),
    Mutation(rule.wait_for_all_who_train, "Termination", scenarios.silent_worker, (0, 1)),
    Mutation(rule.never_call, "Termination", scenarios.slow_worker, (0, 1)),
    Mutation(rule.seat_nobody_later, "Termination", scenarios.away, (0, 1)),
    Mutation(rule.never_remind, "Termination", scenarios.lossy_death, (1, 2)),
    Mutation(rule.say_nothing_again, "Termination", scenarios.lossy_death, (0, 1)),
    Mutation(rule.stay_behind, "Termination", scenarios.away, (0, 1)),
    Mutation(rule.fetch_nothing, "Termination", scenarios.killed_at_once, (2, 7)),
    Mutation(rule.answer_nobody_late, "Held", scenarios.killed_at_once, (0, 2)),
]
OF_THEIR_OWN = (  # no single rule is missed there
    scenarios.applied_by_one,
    scenarios.earlier_lives,
    scenarios.half_a_broadcast,
    scenarios.needed_and_behind,
    scenarios.restarts,
)
SEEDS = range(6)


def test_every_promise_has_a_mutation() -> None:
    assert set(PROMISES) == {mutation.promise for mutation in MUTATIONS}


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


def seeds_of(scenario: Callable[[int], object]) -> list[int]:
    """Those on which the sound cores must pass."""
    used = {seed for mutation in MUTATIONS if mutation.scenario is scenario for seed in mutation.seeds}
    return sorted(used or SEEDS)


@pytest.mark.parametrize(
    "scenario",
    [*{mutation.scenario: None for mutation in MUTATIONS}, *OF_THEIR_OWN],
    ids=lambda scenario: scenario.__name__,
)
def test_the_sound_cores_pass_where_the_mutated_ones_fail(scenario: Callable[[int], object]) -> None:
    for seed in seeds_of(scenario):
        scenario(seed)
