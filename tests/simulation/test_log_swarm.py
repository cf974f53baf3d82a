"""The agreed log under churn, cuts, crashes and bad disks: one log, nothing lost, and no standstill once it is over."""

from __future__ import annotations

import pytest

from shoal.protocol.log.trust import Byzantine, Crash
from tests.simulation.log_swarm import PEACE, LogSwarm, Weather, digests
from tests.simulation.log_worlds import PEERS, register_of

HARD = Weather()
BAD_DISKS = Weather(damages=1)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("trust", [Crash, Byzantine])
def test_one_log_whatever_happens(trust: type, seed: int) -> None:
    voters = 1 + seed % 7
    faults = (voters - 1) // 3 if trust is Byzantine else 0
    LogSwarm(register_of(7, voters, faults), trust, HARD, seed).run()


@pytest.mark.parametrize("seed", range(6))
def test_a_journal_that_is_lost_or_spoiled_costs_a_vote_and_nothing_else(seed: int) -> None:
    LogSwarm(register_of(7, 5), Crash, BAD_DISKS, seed).run()


def test_the_same_seed_is_the_same_run() -> None:
    first, second = (LogSwarm(register_of(5, 3), Crash, HARD, 5) for _ in range(2))
    first.run()
    second.run()
    assert list(digests(first)) == list(digests(second))
    assert len(first.decided) > 10


@pytest.mark.parametrize("voters", [1, 4, 7])
def test_in_peace_a_decision_is_two_delays_and_no_view_changes(voters: int) -> None:
    swarm = LogSwarm(register_of(7, voters), Crash, PEACE, 1)
    swarm.run()
    cores = [machine.core for machine in swarm.machines.values()]
    assert {core.register for core in cores if core is not None} == {cores[0].register}  # type: ignore[union-attr]
    assert len(PEERS) == 7


@pytest.mark.slow
@pytest.mark.parametrize("trust", [Crash, Byzantine])
def test_one_log_under_six_hundred_seeds(trust: type) -> None:
    for seed in range(1000, 1300):
        voters = 1 + seed % 7
        faults = (voters - 1) // 3 if trust is Byzantine else 0
        LogSwarm(register_of(7, voters, faults), trust, HARD, seed).run()
