"""All members are stopped at about the same time, at any moment: the run goes on when enough of them are back."""

from __future__ import annotations

import pytest

from tests.simulation.links import LAN, WAN, Link
from tests.simulation.stopping import Stopping, run_stopping, run_voter_stopping

ROUGH = Link(delay=0.01, jitter=0.3, duplicate=0.5)  # messages overtake each other, and every other one comes twice
LOSSY = Link(delay=0.05, jitter=0.05, loss=0.02)


MANY = [4, pytest.param(9, marks=pytest.mark.slow)]  # at how many events, among those of two rounds


def moments(end: int, count: int) -> range:
    """About `count` evenly spaced numbers of events before `end`."""
    return range(1, end, end // count)


@pytest.mark.parametrize("count", MANY)
@pytest.mark.parametrize("lost", [False, True], ids=["all-return", "most-are-lost"])
@pytest.mark.parametrize("peers", [2, 3, 5])
def test_a_run_outlives_the_stop_of_all(peers: int, lost: bool, count: int) -> None:
    """A run of two in which one is lost goes on alone."""
    for event in moments(60 * peers, count):
        run_stopping(Stopping(event, peers, peers, min_members=1 if lost and peers == 2 else 2, lost=lost))


@pytest.mark.parametrize("count", [3, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("link", [WAN, ROUGH], ids=["wan", "rough"])
def test_nor_does_it_matter_how_far_apart_they_are(link: Link, spread: float, count: int) -> None:
    for event in moments(200, count):
        run_stopping(Stopping(event, link=link, spread=spread))


def test_who_knows_more_than_the_one_who_goes_last_keeps_it() -> None:
    """Two have decided a round of which the first voter has heard nothing when it goes: messages are lost."""
    run_stopping(Stopping(174, 408066, link=LOSSY, spread=0.001))


@pytest.mark.parametrize("count", MANY)
@pytest.mark.parametrize("peers", [2, 3])
def test_nor_that_nothing_is_decided_yet(peers: int, count: int) -> None:
    """What the creator has voted for in round 1 may be decided already, and nobody else has its bytes."""
    for event in moments(90 * peers, count):
        run_stopping(Stopping(event, peers=peers, after=0))


@pytest.mark.parametrize("count", MANY)
@pytest.mark.parametrize("killed", [0.1, 0.5])
def test_who_keeps_the_vote_may_be_killed_instead(killed: float, count: int) -> None:
    """Then only its vote is left of it; the others have kept the state."""
    for event in moments(120, count):
        run_stopping(Stopping(event, killed=killed))


@pytest.mark.parametrize("count", MANY)
def test_who_keeps_the_vote_may_be_killed_while_it_writes(count: int) -> None:
    for event in moments(120, count):
        run_stopping(Stopping(event, cut_short=True))


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 7))])
def test_what_one_has_voted_for_is_there_when_it_is_back(seed: int) -> None:
    """All others die at the first vote, and the voter is stopped: its value may be decided, so the bytes are needed."""
    run_voter_stopping(seed, WAN if seed % 2 else LAN)


def test_who_has_not_heard_who_left_is_told() -> None:
    """p04 goes before the others' LEAVEs arrive, so only p00 has them; back with it, p04 leads."""
    run_stopping(Stopping(26, 8, 5, ROUGH, spread=0.4, lost=True))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize("link", [LAN, WAN, ROUGH], ids=["lan", "wan", "rough"])
def test_more_seeds_and_events(link: Link, seed: int) -> None:
    for event in range(seed, 200, 9):
        run_stopping(Stopping(event, seed, 2 + seed % 4, link, spread=0.2 * (seed % 3)))
        run_stopping(Stopping(event, seed, 3 + seed % 3, link, spread=0.2 * (seed % 3), lost=True))
