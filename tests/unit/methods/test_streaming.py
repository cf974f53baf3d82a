"""Each fragment once in H steps, applied tau steps later on its last outer value, and mixed into what was trained."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from shoal.node.training.methods.diloco import DiLoCo, outer_step
from shoal.node.training.methods.method import MOMENTUM, PARAMETERS
from shoal.node.training.methods.streaming import Streaming, mix, offsets
from shoal.node.training.models.layout import Layout
from tests.unit.methods.mean_kit import Swarm, descent, mean

LR, MU, H, PEERS = 0.7, 0.9, 6, 3
LAYOUT = Layout({"e": (2,), "layers.0.a": (3,), "layers.1.a": (3,), "norm": (1,)})
D = LAYOUT.size
START = torch.linspace(-2, 2, D)
TARGETS = torch.randn((PEERS, D), generator=torch.Generator().manual_seed(7))
TRAIN = descent(TARGETS, 0.1)


def streaming(strides: int = 2, delay: int = 2, alpha: float = 0.5) -> Streaming:
    return Streaming(LAYOUT, strides, H, delay, alpha, LR, MU)


@given(st.integers(1, 30), st.data())
def test_each_fragment_is_sent_once_in_any_h_steps(inner_steps: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, inner_steps))
    start = data.draw(st.integers(1, 1000))
    layout = Layout({f"layers.{layer}.a": (1,) for layer in range(count)})
    method = Streaming(layout, count, inner_steps, 0, 0.5, LR, MU)
    steps = [method.launches(step) for step in range(start, start + inner_steps)]
    assert sorted(part for parts in steps for part in parts) == list(range(count))
    assert max(len(parts) for parts in steps) == 1, "two at once: the peak would be higher"


@given(st.integers(1, 30), st.data())
def test_offsets_are_spread_evenly(inner_steps: int, data: st.DataObject) -> None:
    places = offsets(data.draw(st.integers(1, inner_steps)), inner_steps)
    around = [*places, places[0] + inner_steps]
    gaps = [right - left for left, right in pairwise(around)]
    assert max(gaps) - min(gaps) <= 1


def test_times_by_hand() -> None:
    """Three fragments over six steps: offsets 0, 2 and 4."""
    assert offsets(3, H) == (0, 2, 4)
    sent = [(step, *streaming().launches(step)) for step in range(1, 13) if streaming().launches(step)]
    assert sent == [(2, 1), (4, 2), (6, 0), (8, 1), (10, 2), (12, 0)]


def test_one_fragment_at_once_and_replaced_is_diloco_to_the_bit() -> None:
    swarms = [Swarm(method, START, PEERS, TRAIN) for method in (streaming(1, 0, 0.0), DiLoCo(H, LR, MU))]
    for _ in range(5 * H):
        for own, want in zip(*(swarm.run(1) for swarm in swarms), strict=True):
            assert torch.equal(own.theta, want.theta)
            assert all(torch.equal(own.agreed[name], want.agreed[name]) for name in (PARAMETERS, MOMENTUM))
    assert len(swarms[0].means) == 5


def by_hand(steps: int, delay: int, alpha: float, lost: set[int]) -> tuple[list[Tensor], Tensor]:
    """The rule number by number, with masks instead of fragments: fragment 0 is 2..4, 1 is 5..7, 2 is the rest."""
    parts = torch.tensor([2, 2, 0, 0, 0, 1, 1, 1, 2])
    thetas, outer, momentum = [START] * PEERS, START, torch.zeros(D)
    under_way: dict[int, tuple[Tensor, Tensor]] = {}
    for step in range(1, steps + 1):
        thetas = [TRAIN(peer, step, theta) for peer, theta in enumerate(thetas)]
        for part in range(3):
            if step % H == 2 * part and step not in lost:
                under_way[step + delay] = parts == part, mean([outer - theta for theta in thetas])
        if step in under_way:
            mask, delta = under_way[step]
            stepped = outer_step(outer, momentum, delta, lr=LR, momentum_factor=MU)
            outer, momentum = (torch.where(mask, new, old) for new, old in zip(stepped, (outer, momentum), strict=True))
            thetas = [torch.where(mask, alpha * theta + (1 - alpha) * outer, theta) for theta in thetas]
    return thetas, outer


@pytest.mark.parametrize(("delay", "alpha"), [(0, 0.0), (0, 0.5), (1, 0.5), (2, 0.3), (5, 0.0), (3, 1.0)])
@pytest.mark.parametrize("lost", [set(), {2}, {6, 10, 14}])
def test_peers_come_to_the_bits_of_the_rule(delay: int, alpha: float, lost: set[int]) -> None:
    swarm = Swarm(streaming(2, delay, alpha), START, PEERS, TRAIN, lost)
    for step in range(1, 4 * H + 1):
        thetas, outer = by_hand(step, delay, alpha, lost)
        for peer, theta in zip(swarm.run(1), thetas, strict=True):
            assert torch.equal(peer.theta, theta)
            assert torch.equal(peer.agreed[PARAMETERS], outer)
    assert len({tuple(theta.tolist()) for theta in thetas}) == PEERS


def test_a_payload_is_its_fragment_alone() -> None:
    method = streaming()
    agreed, private = method.begin(START)
    sent = [method.contribute(part, START - torch.arange(D), agreed, private).payload for part in range(3)]
    for payload, want in zip(sent, ([2.0, 3.0, 4.0], [5.0, 6.0, 7.0], [0.0, 1.0, 8.0]), strict=True):
        assert payload.tolist() == pytest.approx(want, abs=1e-6)


def test_what_a_lost_exchange_held_is_in_the_next_one() -> None:
    """Fragment 0, sent after steps 6 and 12: without the first answer the second is of all twelve steps."""
    swarm = Swarm(streaming(), START, PEERS, TRAIN, lost={6})
    peers = swarm.run(12)
    way = mean([START - peer.theta for peer in peers])
    assert torch.equal(swarm.means[0, 12], way[2:5])


@given(st.floats(-100, 100, width=32), st.floats(-100, 100, width=32))
def test_alpha_0_replaces_and_alpha_1_ignores(own: float, outer: float) -> None:
    left, right = torch.tensor([own]), torch.tensor([outer])
    assert torch.equal(mix(left, right, 0.0), right)
    assert torch.equal(mix(left, right, 1.0), left)
    assert torch.equal(mix(left, right, 0.5), (left / 2) + (right / 2))


def test_weights_that_broke_are_replaced() -> None:
    assert mix(torch.tensor([torch.inf, torch.nan]), torch.tensor([1.0, 2.0]), 0.0).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"delay": H}, "before the fragment is sent again"),
        ({"delay": -1}, "before the fragment is sent again"),
        ({"alpha": 1.1}, "alpha is a share"),
        ({"alpha": -0.1}, "alpha is a share"),
        ({"strides": 3}, "2 layers cannot"),
        ({"strides": 0}, "one fragment or more"),
    ],
)
def test_settings_that_cannot_be_are_refused(change: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        streaming(**change)  # type: ignore[arg-type]


def test_more_fragments_than_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="3 fragments need at least 3"):
        Streaming(LAYOUT, 2, 2, 0, 0.0, LR, MU)
