"""The agreed log under churn, cuts, crashes and bad disks: one log, nothing lost, and no standstill once it is over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.protocol.log.trust import Byzantine, Crash
from tests.simulation.log_swarm import PEACE, LogSwarm, Weather, digests
from tests.simulation.log_worlds import register_of

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


@pytest.mark.parametrize("voters", [1, 4, 8, 16, 32])
@pytest.mark.parametrize(("trust", "delays"), [(Crash, 2), (Byzantine, 3)])
def test_what_a_decision_costs(trust: type, delays: int, voters: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Message delays until the last voter has decided, and messages; docs/log.md has the table."""
    delay = 0.04
    calm = replace(PEACE, delay=(delay, delay), fsync=(0.0, 0.0), wishes=0.0, seconds=1.0)
    faults = (voters - 1) // 3 if trust is Byzantine else 0
    swarm = LogSwarm(register_of(voters, voters, faults), trust, calm, 1, gossips=False)
    swarm.pass_until(1.0)
    messages, sent = swarm.messages, swarm.bytes
    swarm.want_a_guest()
    swarm.pass_until(2.0)
    took = swarm.decided_everywhere_at[1] - 1.0
    messages, sent = swarm.messages - messages, swarm.bytes - sent
    with capsys.disabled():
        print(
            f"\n{trust.__name__:9} {voters:2} voters: {took / delay:.0f} delays, {messages} messages, {sent} bytes",
            end="",
        )
    assert took == pytest.approx(delays * delay if voters > 1 else 0.0)
    phases = delays - 1
    assert messages == (phases * voters + 2) * (voters - 1) + 1  # votes, a request and a proposal to each; one told


@pytest.mark.slow
@pytest.mark.parametrize("trust", [Crash, Byzantine])
def test_one_log_under_six_hundred_seeds(trust: type) -> None:
    for seed in range(1000, 1300):
        voters = 1 + seed % 7
        faults = (voters - 1) // 3 if trust is Byzantine else 0
        LogSwarm(register_of(7, voters, faults), trust, HARD, seed).run()
