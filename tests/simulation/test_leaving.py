"""One of a few members signs off, whenever; another dies, or it comes back: the others go on."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.protocol.base.ids import PeerId
from tests.simulation.leaving import Leaving, run_leaving, run_return
from tests.simulation.links import Link
from tests.simulation.swarm import peers_named

NAMES = peers_named(3)
ROUGH = Link(delay=0.01, jitter=0.3, duplicate=0.5)  # messages overtake each other, and every other one comes twice


def sweep(case: Leaving, first: int, stride: int) -> int:
    """Let the leaver leave at its events `first`, `first + stride`, ... of two rounds; how many there were."""
    event = first
    while run_leaving(dataclasses.replace(case, event=event)):
        event += stride
    return (event - first) // stride


STRIDES = [5, pytest.param(2, marks=pytest.mark.slow)]  # events


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("leaver", NAMES)
def test_a_leaver_is_missed_by_nobody_whenever_it_goes(leaver: PeerId, stride: int) -> None:
    assert sweep(Leaving(leaver, 0), 1, stride) > 60 // stride


@pytest.mark.parametrize("stride", STRIDES)
def test_nor_is_one_that_has_never_voted(stride: int) -> None:
    """It is in its first rounds; the proposal names it before it is a voter."""
    assert sweep(Leaving(NAMES[2], 0, newcomer=True), 1, stride) > 60 // stride


@pytest.mark.parametrize("stride", [8, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("leaver", NAMES)
def test_its_goodbye_may_come_late_twice_and_out_of_order(leaver: PeerId, stride: int) -> None:
    assert sweep(Leaving(leaver, 0, link=ROUGH, after=1.5), 1, stride) > 60 // stride


@pytest.mark.parametrize("stride", [10, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("away", [0.5, 6.0])
@pytest.mark.parametrize("leaver", NAMES[:2])
def test_who_comes_back_is_one_of_them_again(leaver: PeerId, away: float, stride: int) -> None:
    """In a run that does not go on without it, and however often the others hear its old goodbyes."""
    event = 1
    while run_return(Leaving(leaver, event), 2, away):
        event += stride
    assert event > 40


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_every_event_of_a_newcomer_and_more_seeds(seed: int) -> None:
    assert sweep(Leaving(NAMES[2], 0, seed, newcomer=True), 1, 1) > 60


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("leaver", NAMES)
def test_every_event_of_more_seeds(leaver: PeerId, seed: int) -> None:
    assert sweep(Leaving(leaver, 0, seed), 1, 1) > 60
    assert sweep(Leaving(leaver, 0, seed, ROUGH, after=1.5), 1, 1) > 60
