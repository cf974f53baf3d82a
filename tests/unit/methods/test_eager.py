"""Eager updates: one's own share at once, the others' a round late, and corrections of what was anticipated."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from shoal.node.training.methods.diloco import DiLoCo, outer_step, pseudo_gradient
from shoal.node.training.methods.late import (
    REPLICA,
    REPLICA_MOMENTUM,
    TAKEN,
    DelayedDiLoCo,
    EagerDiLoCo,
    eager_gradient,
)
from shoal.node.training.methods.method import MOMENTUM, PARAMETERS, Answer, Method
from tests.unit.methods.mean_kit import Swarm, descent

LR, MU, H = 0.7, 0.9, 3
TARGETS = torch.tensor([[1.0, -2.0, 0.5], [0.0, 1.0, 4.0], [-3.0, 0.0, 0.25], [2.0, 2.0, 2.0]])
START = torch.tensor([3.0, 3.0, 3.0])
TRAIN = descent(TARGETS, 0.1)
METHOD = EagerDiLoCo(H, LR, MU)
grids = st.lists(st.integers(-1000, 1000), min_size=4, max_size=4)  # sums and quarters of such integers are exact


def one(value: float) -> Tensor:
    return torch.tensor([value])


def test_two_workers_by_hand() -> None:
    """Delta^0 = 0.2 and 0.4, Delta^1 = 0.1 and 0.5."""
    firsts = [eager_gradient(one(own), 2, one(0.0), one(0.0)) for own in (0.2, 0.4)]
    assert [each.item() for each, _ in firsts] == pytest.approx([0.1, 0.2], abs=1e-7)
    seconds = [
        eager_gradient(one(own), 2, one(0.3), share)[0].item()
        for own, (_, share) in zip((0.1, 0.5), firsts, strict=True)
    ]
    assert seconds == pytest.approx([0.25, 0.35], abs=1e-7)


@given(grids, grids)
def test_the_mean_of_the_gradients_is_the_late_mean_and_a_share_of_what_is_new(old: list[int], new: list[int]) -> None:
    before, after = torch.tensor(old).float(), torch.tensor(new).float()
    late = before.mean().expand(4)
    gradients, _ = eager_gradient(after, 4, late, before / 4)
    assert gradients.mean().item() == (late + (after.mean() - before.mean()) / 4)[0].item()


@given(st.lists(grids, min_size=1, max_size=6), st.data())
def test_all_have_taken_the_same_means_but_for_the_last_shares(rounds: list[list[int]], data: st.DataObject) -> None:
    """Exact: what worker i has taken in all, less its latest share, is the sum of the answered means."""
    answered = data.draw(st.lists(st.booleans(), min_size=len(rounds), max_size=len(rounds)))
    total, late, taken, means = torch.zeros(4), torch.zeros(4), torch.zeros(4), torch.zeros(4)
    for owns, there in zip(rounds, answered, strict=True):
        own = torch.tensor(owns).float()
        gradient, taken = eager_gradient(own, 4, late, taken)
        total, means = total + gradient, means + late
        late = own.mean().expand(4) if there else torch.zeros(4)
    assert torch.equal(total - taken, means)


def test_alone_it_is_diloco_to_the_bit_in_every_round() -> None:
    eager, plain = (Swarm(method, START, 1, TRAIN) for method in (METHOD, DiLoCo(H, LR, MU)))
    for _ in range(6):
        (own,), (want,) = eager.run(H), plain.run(H)
        assert torch.equal(own.theta, want.theta)
        assert torch.equal(own.private[REPLICA_MOMENTUM], want.agreed[MOMENTUM])


@pytest.mark.parametrize("lost", [set(), {H}, {2 * H, 3 * H}])
def test_what_all_agree_on_are_the_late_means_and_replicas_differ(lost: set[int]) -> None:
    swarm = Swarm(METHOD, START, 4, TRAIN, lost)
    peers = swarm.run(5 * H)
    theta, momentum = START, torch.zeros(3)
    for step in range(H, 5 * H, H):
        if (0, step) in swarm.means:
            theta, momentum = outer_step(theta, momentum, swarm.means[0, step], lr=LR, momentum_factor=MU)
    assert torch.equal(peers[0].agreed[PARAMETERS], theta)
    assert torch.equal(peers[0].agreed[MOMENTUM], momentum)
    assert len({tuple(peer.theta.tolist()) for peer in peers}) == 4


def test_a_round_of_the_method_is_the_rule() -> None:
    agreed, private = METHOD.begin(START)
    end = torch.tensor([2.0, 3.5, 1.0])
    own = pseudo_gradient(START, end)
    assert torch.equal(METHOD.contribute(0, end.clone(), agreed, private).payload, own)
    theta, private = METHOD.lapse(0, end, agreed, private, 4)
    want, momentum = outer_step(START, torch.zeros(3), own / 4, lr=LR, momentum_factor=MU)
    assert torch.equal(theta, want)
    assert torch.equal(private[REPLICA], want)
    assert torch.equal(private[TAKEN], own / 4)
    late, end = torch.tensor([0.5, 0.25, -1.0]), torch.tensor([1.0, 1.0, 1.0])
    own = pseudo_gradient(theta, end)
    assert torch.equal(METHOD.contribute(0, end.clone(), agreed, private).payload, own)
    gradient, share = eager_gradient(own, 5, late, private[TAKEN])  # a fifth member has come
    want, momentum = outer_step(theta, momentum, gradient, lr=LR, momentum_factor=MU)
    theta, private = METHOD.merge(0, end, agreed, private, Answer(late, 5))
    assert torch.equal(theta, want)
    assert torch.equal(private[REPLICA_MOMENTUM], momentum)
    assert torch.equal(private[TAKEN], share)


def spread(peers: list[Tensor]) -> float:
    return (torch.stack(peers) - peers[0]).abs().max().item()


def test_replicas_come_together_once_nobody_moves() -> None:
    """Even after a lost round: its share is given back, and the momentum of both forgets."""
    swarm = Swarm(METHOD, START, 4, lambda peer, step, theta: TRAIN(peer, step, theta) if step <= 4 * H else theta, {H})
    apart = spread([peer.theta for peer in swarm.run(4 * H)])
    assert apart > 0.1
    assert spread([peer.theta for peer in swarm.run(200 * H)]) < 1e-5 * apart


def test_a_joiner_starts_from_the_agreed_state_and_stays_as_near_as_the_others() -> None:
    swarm = Swarm(METHOD, START, 3, lambda peer, step, theta: TRAIN(peer, step, theta) if step <= 9 * H else theta)
    agreed = swarm.run(5 * H)[0].agreed
    joiner = type(swarm.peers[0])(agreed[PARAMETERS], agreed, METHOD.join(agreed))
    assert torch.equal(joiner.private[REPLICA_MOMENTUM], agreed[MOMENTUM])
    swarm.peers.append(joiner)
    apart = spread([peer.theta for peer in swarm.run(4 * H)])
    assert spread([peer.theta for peer in swarm.run(200 * H)]) < 1e-5 * apart


def test_times_and_agreed_vectors_are_those_of_delayed() -> None:
    delayed: Method = DelayedDiLoCo(H, LR, MU)
    eager: Method = METHOD
    assert (eager.delay, eager.exchange) == (delayed.delay, delayed.exchange)
    assert eager.begin(START)[0].keys() == delayed.begin(START)[0].keys()
