"""Gossip: the numbers of a ring, a mean that does not change, and the merge at the end."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shoal.node.lab.network import neighbours, weights_of
from shoal.node.training.methods.gossip import Gossip, merge, mix
from shoal.node.training.methods.method import NONE, PARAMETERS, Answer
from tests.unit.lab.test_graphs import RING, matrix_of

seeds = st.integers(0, 2**32)


def draws(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def mix_all(stack: Tensor, matrix: list[list[float]], steps: int = 1) -> Tensor:
    """All weights, (M, d), after `steps` steps with the mixing matrix (M, M), whose rows sum to 1."""
    for _ in range(steps):
        stack = torch.stack([_row(stack, own, row) for own, row in enumerate(matrix)])
    return stack


def _row(stack: Tensor, own: int, row: list[float]) -> Tensor:
    others = [place for place, weight in enumerate(row) if weight and place != own]
    return mix(stack[own], [stack[place] for place in others], [row[place] for place in others])


# -- the rule -----------------------------------------------------------------------------------------------


def test_a_ring_of_four_mixes_so() -> None:
    start, ring = torch.tensor([[4.0], [0.0], [0.0], [0.0]]), matrix_of(RING)
    assert mix_all(start, ring, 0).flatten().tolist() == [4, 0, 0, 0]
    assert mix_all(start, ring, 1).flatten().tolist() == pytest.approx([4 / 3, 4 / 3, 0, 4 / 3], abs=1e-6)
    assert mix_all(start, ring, 2).flatten().tolist() == pytest.approx([4 / 3, 8 / 9, 8 / 9, 8 / 9], abs=1e-6)
    assert mix_all(start, ring, 60).flatten().tolist() == pytest.approx([1, 1, 1, 1], abs=1e-5)


@given(seeds, st.integers(1, 12), st.floats(0, 1), st.integers(0, 5))
@settings(max_examples=40)
def test_mixing_leaves_the_mean_and_brings_all_nearer_to_it(
    seed: int, members: int, probability: float, steps: int
) -> None:
    graph = neighbours(seed.to_bytes(8, "little"), 1, [str(n) for n in range(members)], probability)
    before = draws(seed, members, 30)
    after = mix_all(before, matrix_of(graph), steps)
    assert torch.allclose(after.double().mean(0), before.double().mean(0), rtol=0, atol=1e-6)
    far = [(each.double() - before.double().mean(0)).norm().item() for each in (before, after)]
    assert far[1] <= far[0] + 1e-5


def test_a_full_graph_is_the_mean_in_one_step() -> None:
    stack = draws(1, 6, 30)
    mixed = mix_all(stack, matrix_of(neighbours(b"seed", 1, list("abcdef"), 1.0)))
    assert torch.allclose(mixed, merge(stack).expand(6, 30), rtol=0, atol=1e-6)


def test_merging_is_the_mean() -> None:
    assert merge(torch.tensor([[1.0, 8.0], [2.0, 0.0], [6.0, 1.0]])).tolist() == [3, 3]
    assert merge(torch.tensor([[1.5, 2.5]])).tolist() == [1.5, 2.5]


def test_the_weight_of_a_neighbour_that_is_gone_is_our_own() -> None:
    own, other = torch.tensor([4.0]), torch.tensor([8.0])
    assert mix(own, [other, other], [0.25, 0.25]).item() == 6
    assert mix(own, [other], [0.25]).item() == 5
    assert mix(own, [], []).item() == 4


def test_one_value_for_each_weight() -> None:
    with pytest.raises(ValueError, match="zip"):
        mix(torch.zeros(2), [torch.zeros(2)], [0.1, 0.1])


def test_arguments_stay_as_they_are_and_blocks_may_be_mixed_apart() -> None:
    own, others = draws(1, 90), list(draws(2, 3, 90))
    copies = [each.clone() for each in (own, *others)]
    whole = mix(own, others, [0.1, 0.2, 0.3])
    assert all(torch.equal(left, right) for left, right in zip((own, *others), copies, strict=True))
    cuts = (slice(0, 31), slice(31, 90))
    assert torch.equal(torch.cat([mix(own[c], [each[c] for each in others], [0.1, 0.2, 0.3]) for c in cuts]), whole)


# -- the method ---------------------------------------------------------------------------------------------


def test_peers_driven_by_hand_follow_the_rule() -> None:
    """Two steps of mixing after each three inner ones: each contributes what the one before has left."""
    method, names = Gossip(3, mixing_steps=2), list("abcde")
    begun = [method.begin(draws(9, 30)) for _ in names]
    held, thetas = [agreed for agreed, _ in begun], [agreed[PARAMETERS] for agreed, _ in begun]
    assert all(private == NONE for _, private in begun)
    expected, round = torch.stack(thetas), 0
    for step in range(1, 13):
        moves = 0.1 * draws(100 * step, len(names), 30)
        thetas, expected = [theta + move for theta, move in zip(thetas, moves, strict=True)], expected + moves
        assert method.launches(step) == ((0, 0) if step % 3 == 0 else ())
        for part in method.launches(step):
            graph, round = neighbours(b"seed", round, names, 0.5), round + 1
            sent = {
                name: method.contribute(part, theta, agreed, NONE).payload
                for name, theta, agreed in zip(names, thetas, held, strict=True)
            }
            for place, name in enumerate(names):
                value = mix(sent[name], [sent[other] for other in graph[name]], weights_of(graph, name))
                answer = Answer(value, 1 + len(graph[name]))
                held[place] = method.apply(part, held[place], answer)
                thetas[place], private = method.merge(part, thetas[place], held[place], NONE, answer)
                assert private == NONE
            expected = mix_all(expected, matrix_of(graph))
        assert torch.equal(torch.stack(thetas), expected)
    assert round == 8
    assert all(torch.equal(agreed[PARAMETERS], row) for agreed, row in zip(held, expected, strict=True))


def test_what_is_trained_while_the_exchange_is_under_way_is_put_on_top_of_it() -> None:
    method = Gossip(4, delay=2)
    agreed, _ = method.begin(torch.tensor([1.0]))
    made = method.contribute(0, torch.tensor([3.0]), agreed, NONE)
    answer = Answer(mix(made.payload, [torch.tensor([7.0])], [0.5]), 2)
    agreed = method.apply(0, agreed, answer)
    assert agreed[PARAMETERS].item() == 5.0
    assert method.merge(0, torch.tensor([3.25]), agreed, made.private, answer).theta.item() == 5.25


def test_a_delay_must_fit_between_two_exchanges() -> None:
    for wrong in ({"delay": 4}, {"delay": -1}, {"delay": 1, "mixing_steps": 2}):
        with pytest.raises(ValueError, match="delay"):
            Gossip(4, **wrong)


def test_gossip_and_one_merge_have_the_mean_of_those_who_never_mixed() -> None:
    """Where the moves do not depend on the weights; of real training this is only the first order."""
    stack, apart = draws(3, 8, 30), draws(3, 8, 30)
    for round in range(10):
        moves = 0.1 * draws(100 + round, 8, 30)
        stack = mix_all(stack + moves, matrix_of(neighbours(b"seed", round, list("abcdefgh"), 0.2)))
        apart = apart + moves
    assert torch.allclose(merge(stack), merge(apart), rtol=0, atol=2e-6)
    assert not torch.allclose(stack, apart, rtol=0, atol=0.1)
