"""The stale mean makes a step with a clipped momentum, one round late."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from shoal.node.training.methods.late import CO2, co2_step, staleness_penalty
from shoal.node.training.methods.method import MOMENTUM, PARAMETERS
from tests.unit.methods.mean_kit import Swarm, descent, mean

H, PEERS = 3, 2
TARGETS = torch.tensor([[1.0, -2.0, 0.5], [0.0, 1.0, 4.0]])
START = torch.tensor([3.0, 3.0, 3.0])
TRAIN = descent(TARGETS, 0.1)
ETA, SIGMA, PHI = 0.8, 0.6, 0.3
floats = st.floats(-1e4, 1e4, width=32)


def draws(seed: int) -> Tensor:
    return torch.randn(500, generator=torch.Generator().manual_seed(seed))


def test_without_momentum_and_penalty_the_parameters_become_the_mean() -> None:
    """Local SGD: exact where the difference is."""
    theta, stale = torch.tensor([1.0, -2.0]), torch.tensor([0.75, -2.5])
    new, _ = co2_step(theta, torch.zeros(2), stale, lr=1.0, momentum_factor=0.0, clip=math.inf)
    assert torch.equal(new, stale)


@pytest.mark.parametrize(("gap", "step"), [(0.5, 0.1), (-0.5, -0.1), (0.0625, 0.0625)])
def test_a_step_is_no_longer_than_the_clip(gap: float, step: float) -> None:
    """The parameters move by the clipped momentum, and the momentum that stays is the clipped one."""
    theta, momentum = co2_step(
        torch.zeros(1), torch.zeros(1), torch.tensor([-gap]), lr=1.0, momentum_factor=0.9, clip=0.1
    )
    assert torch.equal(momentum, torch.tensor([step]))
    assert torch.equal(theta, torch.tensor([-step]))


@given(floats, floats, floats, st.floats(2.0**-10, 8, width=32))
def test_no_momentum_is_ever_beyond_the_clip(theta: float, momentum: float, stale: float, clip: float) -> None:
    vectors = (torch.tensor([each]) for each in (theta, momentum, stale))
    _, after = co2_step(*vectors, lr=1.0, momentum_factor=0.9, clip=clip)
    assert after.abs().item() <= clip


def test_round_0_has_nothing_stale_and_changes_nothing() -> None:
    theta, momentum = torch.tensor([1.0]), torch.tensor([0.5])
    assert co2_step(theta, momentum, None, lr=1.0, momentum_factor=0.9, clip=1.0) == (theta, momentum)


def test_two_steps_by_hand() -> None:
    """theta 1, mean 0.6: m = 0.4 / 2; then mean 0.3: g = 0.54, m = 0.5 * 0.2 + 0.54 / 1, clipped at 0.5."""
    theta, momentum = co2_step(
        torch.tensor([1.0]), torch.zeros(1), torch.tensor([0.6]), lr=0.8, momentum_factor=0.5, clip=0.5, penalty=2.0
    )
    assert momentum.item() == pytest.approx(0.2, abs=1e-7)
    assert theta.item() == pytest.approx(0.84, abs=1e-7)
    theta, momentum = co2_step(theta, momentum, torch.tensor([0.3]), lr=0.8, momentum_factor=0.5, clip=0.5)
    assert momentum.item() == 0.5
    assert theta.item() == pytest.approx(0.44, abs=1e-7)


def test_each_operation_rounds_once_on_its_own() -> None:
    """The same step in numpy scalars, one IEEE operation at a time."""
    theta, momentum, stale, change = draws(1), draws(2), draws(3), draws(4)
    penalty = staleness_penalty(change, 0.3)
    got_theta, got_momentum = co2_step(theta, momentum, stale, lr=0.8, momentum_factor=0.6, clip=1.5, penalty=penalty)
    eta, sigma, phi, typical, one = (torch.tensor(each).numpy() for each in (0.8, 0.6, 1.5, 0.3, 1.0))
    for i in range(500):
        t, m, s, c = (each.numpy()[i] for each in (theta, momentum, stale, change))
        want = abs(c) / typical + one
        assert penalty.numpy()[i] == want
        m = min(max(m * sigma + (t - s) / want, -phi), phi)
        assert got_momentum.numpy()[i] == m
        assert got_theta.numpy()[i] == t - m * eta


def test_the_penalty_is_one_where_nothing_moved_and_grows_with_the_change() -> None:
    assert staleness_penalty(torch.tensor([0.0, 0.5, -1.0]), 0.5).tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match="must be positive"):
        staleness_penalty(torch.zeros(1), 0.0)


def by_hand(rounds: int, aborted: tuple[int, ...], typical: float | None) -> tuple[Tensor, Tensor]:
    theta, momentum, under_way = START, torch.zeros(3), None
    for t in range(rounds):
        ends = [theta] * PEERS
        for step in range(t * H + 1, t * H + H + 1):
            ends = [TRAIN(peer, step, end) for peer, end in enumerate(ends)]
        penalty = 1.0 if typical is None else staleness_penalty(momentum * ETA, typical)
        theta, momentum = co2_step(theta, momentum, under_way, lr=ETA, momentum_factor=SIGMA, clip=PHI, penalty=penalty)
        under_way = None if t in aborted else mean(ends)
    return theta, momentum


@pytest.mark.parametrize("typical", [None, 0.05])
@pytest.mark.parametrize("aborted", [(), (0,), (1, 2)])
def test_peers_come_to_the_bits_of_the_rule(aborted: tuple[int, ...], typical: float | None) -> None:
    method = CO2(H, ETA, SIGMA, PHI, typical)
    swarm = Swarm(method, START, PEERS, TRAIN, lost={(t + 1) * H for t in aborted})
    for rounds in range(1, 7):
        theta, momentum = by_hand(rounds, aborted, typical)
        for peer in swarm.run(H):
            assert torch.equal(peer.theta, theta)
            assert torch.equal(peer.agreed[PARAMETERS], theta)
            assert torch.equal(peer.agreed[MOMENTUM], momentum)
    assert not torch.equal(theta, START)


def test_the_clip_must_leave_something() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        CO2(H, ETA, SIGMA, 0.0)
