"""NoLoCo: the numbers of a small example, how the mean moves, and where stability ends."""

from __future__ import annotations

import secrets

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shoal.node.manifest.method import check_stability, gamma_limit
from shoal.node.training.methods.method import MOMENTUM, NONE, PARAMETERS, Answer, Contribution
from shoal.node.training.methods.noloco import NoLoCo, pull
from shoal.protocol.replicas.meeting import pairs
from shoal.protocol.tensors.compression import codec

seeds = st.integers(0, 2**32)


def draws(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def exchanged(
    slow: Tensor, momentum: Tensor, theta: Tensor, alpha: float, beta: float, gamma: float
) -> tuple[Tensor, Tensor]:
    """One group of all rows, (n, d), after the exchange."""
    group = torch.stack((theta - slow, slow), dim=1)
    rows = [
        pull(slow[own], momentum[own], group, own, alpha=alpha, beta=beta, gamma=gamma) for own in range(len(group))
    ]
    return torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])


# -- the rule -----------------------------------------------------------------------------------------------


def test_two_rounds_of_a_pair_give_these_values() -> None:
    slow, momentum = torch.tensor([[0.0], [2.0]]), torch.zeros(2, 1)
    slow, momentum = exchanged(slow, momentum, torch.tensor([[-1.0], [2.5]]), 0.5, 0.7, 0.7)
    assert momentum.flatten().tolist() == pytest.approx([0.525, -0.875], abs=1e-6)
    assert slow.flatten().tolist() == pytest.approx([0.525, 1.125], abs=1e-6)
    assert slow.mean().item() == pytest.approx(0.825, abs=1e-6)
    slow, momentum = exchanged(slow, momentum, slow + torch.tensor([[-0.2], [0.1]]), 0.5, 0.7, 0.7)
    assert momentum.flatten().tolist() == pytest.approx([0.4375, -0.6825], abs=1e-6)
    assert slow.flatten().tolist() == pytest.approx([0.9625, 0.4425], abs=1e-6)


@given(seeds, st.floats(0.01, 1.4), st.integers(2, 5))
@settings(max_examples=30)
def test_the_mean_over_replicas_is_a_heavy_ball_whatever_the_pull_is(seed: int, gamma: float, n: int) -> None:
    slow, momentum = draws(seed, n, 20), torch.zeros(n, 20)
    mean, ball = slow.double().mean(0), torch.zeros(20, dtype=torch.float64)
    for round in range(8):
        moves = 0.1 * draws(seed + 1 + round, n, 20)
        slow, momentum = exchanged(slow, momentum, slow + moves, 0.5, 0.7, gamma)
        ball = 0.5 * ball + 0.7 * moves.double().mean(0)
        mean = mean + ball
        assert torch.allclose(slow.double().mean(0), mean, rtol=0, atol=1e-5)


def test_the_pull_cancels_out_of_the_mean_also_where_a_codec_loses_much() -> None:
    slow = draws(1, 2, 300)
    lossy = torch.stack([codec("int8").decode(codec("int8").encode(each), 300) for each in slow])
    assert not torch.allclose(lossy, slow, rtol=0, atol=1e-3)
    group = torch.stack((torch.zeros(2, 300), lossy), dim=1)
    pulled = [pull(slow[own], torch.zeros(300), group, own, alpha=0.5, beta=0.7, gamma=0.9)[0] for own in (0, 1)]
    assert torch.allclose((pulled[0] + pulled[1]) / 2, slow.mean(0), rtol=0, atol=1e-6)


@given(st.lists(st.tuples(*[st.integers(-(2**18), 2**18)] * 4), min_size=1))
def test_without_momentum_a_full_pull_makes_a_pair_identical(values: list[tuple[int, int, int, int]]) -> None:
    """Exactly, on a grid of 2**-10 where nothing is rounded."""
    numbers = torch.tensor(values, dtype=torch.float32).T * 2.0**-10
    slow, _ = exchanged(numbers[:2], torch.zeros(2, len(values)), numbers[2:], 0.0, 1.0, 1.0)
    assert torch.equal(slow[0], slow[1])
    assert torch.equal(slow[0], numbers[2:].sum(0) / 2)


def test_arguments_stay_as_they_are_and_blocks_may_be_pulled_apart() -> None:
    slow, momentum, group = draws(1, 90), draws(2, 90), draws(3, 2, 2, 90)
    copies = [each.clone() for each in (slow, momentum, group)]
    whole = pull(slow, momentum, group, 1, alpha=0.5, beta=0.7, gamma=0.9)
    assert all(torch.equal(left, right) for left, right in zip((slow, momentum, group), copies, strict=True))
    cuts = (slice(0, 31), slice(31, 90))
    parts = [pull(slow[c], momentum[c], group[..., c], 1, alpha=0.5, beta=0.7, gamma=0.9) for c in cuts]
    for index in (0, 1):
        assert torch.equal(torch.cat([part[index] for part in parts]), whole[index])


# -- stability ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alpha", "group", "limit"), [(0.5, 2, 1.5), (0.9, 2, 0.38), (0.0, 2, 2.0), (0.0, 4, 2.0), (0.5, 4, 2.0)]
)
def test_the_pull_is_limited_so(alpha: float, group: int, limit: float) -> None:
    assert gamma_limit(alpha, group) == pytest.approx(limit, rel=1e-12)
    check_stability(alpha, 0.999 * limit, group)
    for gamma in (0.0, -0.1, 1.001 * limit, float("nan")):
        with pytest.raises(ValueError, match="stay together only if"):
            check_stability(alpha, gamma, group)


def test_settings_that_mean_nothing_are_refused() -> None:
    for alpha in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match="the momentum"):
            check_stability(alpha, 0.5)
    with pytest.raises(ValueError, match="nobody to exchange with"):
        check_stability(0.5, 0.5, 1)
    with pytest.raises(ValueError, match=r"less than 0\.38"):
        NoLoCo(10, 0.9, 0.7, 0.5)


def spread(alpha: float, gamma: float, group: int, rounds: int = 1000, replicas: int = 128) -> float:
    """By how much replicas differ in the end, in units of the beginning, if nobody trains; in double precision."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    generator = torch.Generator().manual_seed(seed)
    slow = torch.randn(replicas, 8, generator=generator, dtype=torch.float64)
    momentum, before = torch.zeros_like(slow), slow.std(0).norm()
    for _ in range(rounds):
        order = torch.randperm(replicas, generator=generator).view(-1, group)
        groups = torch.stack((torch.zeros_like(slow), slow), dim=1)[order]  # (groups, n, 2, d): theta is phi
        groups = groups.permute(1, 2, 0, 3)  # (n, 2, groups, d): all groups are pulled at once
        for own in range(group):
            who = order[:, own]
            slow[who], momentum[who] = pull(
                groups[own, 1], momentum[who], groups, own, alpha=alpha, beta=0.7, gamma=gamma
            )
    return float(slow.std(0).norm() / before)


@pytest.mark.parametrize(("alpha", "group", "near"), [(0.0, 2, 0.03), (0.5, 2, 0.03), (0.9, 2, 0.2), (0.5, 4, 0.03)])
def test_replicas_come_together_just_inside_the_limit_and_drift_apart_just_outside(
    alpha: float, group: int, near: float
) -> None:
    """128 replicas, 1,000 rounds of random groups; with much momentum growth is slow near the limit."""
    limit = gamma_limit(alpha, group)
    assert spread(alpha, limit * (1 - near), group) < 1e-2
    assert spread(alpha, limit * (1 + near), group) > 1e2


# -- the method ---------------------------------------------------------------------------------------------


class Peer:
    """One replica, driven by hand."""

    def __init__(self, method: NoLoCo, theta: Tensor) -> None:
        self.theta = theta
        self.agreed, self.private = method.begin(theta)


def exchange(method: NoLoCo, two: list[Peer]) -> tuple[list[Answer], list[Contribution]]:
    """What two peers that exchange now get, and what each has made for it."""
    made = [method.contribute(0, each.theta, each.agreed, each.private) for each in two]
    along = [[each.agreed[name] for name in method.sends] for each in two]
    value = torch.stack([torch.stack([each.payload, *more]) for each, more in zip(made, along, strict=True)])
    return [Answer(value, 2, own) for own in (0, 1)], made


@pytest.mark.parametrize("delay", [0, 1])
def test_peers_driven_by_hand_follow_the_rule_and_a_bye_trains_on(delay: int) -> None:
    method, names = NoLoCo(2, 0.5, 0.7, 0.9, delay), list("abcde")
    peers = {name: Peer(method, draws(9, 30)) for name in names}
    slow = {name: draws(9, 30) for name in names}
    momentum = {name: torch.zeros(30) for name in names}
    theta = dict(slow)
    byes, under_way = set(), dict[str, tuple[Answer, Contribution, Tensor, Tensor, Tensor]]()
    for step in range(1, 13 + delay):
        moves = {name: 0.1 * draws(100 * step + index, 30) for index, name in enumerate(names)}
        for name, peer in peers.items():
            peer.theta = peer.theta + moves[name]
            theta[name] = theta[name] + moves[name]
        if method.launches(step):
            drawn = pairs(b"seed", step // 2, names)
            byes |= set(names) - {name for pair in drawn for name in pair}
            for pair in drawn:
                answers, made = exchange(method, [peers[name] for name in pair])
                start, ball, end = (torch.stack([values[each] for each in pair]) for values in (slow, momentum, theta))
                after, balls = exchanged(start, ball, end, 0.5, 0.7, 0.9)
                for own, name in enumerate(pair):
                    under_way[name] = answers[own], made[own], after[own], balls[own], theta[name]
        if (step - delay) % 2 == 0:
            for name, (answer, made_of, after_it, ball_of, at_launch) in under_way.items():
                each = peers[name]
                each.agreed = method.apply(0, each.agreed, answer)
                each.theta, each.private = method.merge(0, each.theta, each.agreed, made_of.private, answer)
                slow[name], momentum[name] = after_it, ball_of
                theta[name] = after_it + (theta[name] - at_launch) if delay else after_it
            under_way.clear()
        for name, peer in peers.items():
            assert torch.equal(peer.theta, theta[name])
            assert torch.equal(peer.agreed[PARAMETERS], slow[name])
            assert torch.equal(peer.agreed[MOMENTUM], momentum[name])
    assert byes


def test_a_payload_is_how_far_training_went_and_from_where() -> None:
    method = NoLoCo(1, 0.5, 0.7, 0.7)
    agreed, private = method.begin(torch.tensor([2.0]))
    sent = method.contribute(0, torch.tensor([2.5]), agreed, private)
    assert sent.payload.tolist() == [0.5]
    assert [agreed[name].tolist() for name in method.sends] == [[2.0]]
    assert sent.private == private == NONE


def test_after_a_lapse_the_next_change_is_that_of_both_rounds() -> None:
    method = NoLoCo(2, 0.5, 0.7, 0.7, 1)
    agreed, private = method.begin(torch.tensor([2.0]))
    made = method.contribute(0, torch.tensor([2.5]), agreed, private)
    theta, private = method.lapse(0, torch.tensor([2.75]), agreed, made.private, 1)
    assert theta.item() == 2.75
    assert method.contribute(0, torch.tensor([3.0]), agreed, private).payload.item() == 1.0
