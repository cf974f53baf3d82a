"""Parameters of several experts merged into one: golden numbers, and results that must hold."""

from __future__ import annotations

import pytest
import torch

from shoal.node.experts.merging import average, balance, clipped, pcb, spread

TASKS = torch.tensor([[1.0, -2.0, 0.5, 0.0, 0.0], [1.0, 1.0, 0.5, 0.0, 3.0]])


def test_the_golden_balance() -> None:
    first, second = balance(TASKS)
    assert first.tolist() == pytest.approx([1.589413, 7.123254, 0.523647, 0, 0], abs=1e-6)
    assert second.tolist() == pytest.approx([1.203925, -0.951116, 0.488517, 0, 7.389056], abs=1e-6)


def test_what_only_one_expert_has_learned_is_kept_as_it_is() -> None:
    base = torch.tensor([5.0, 5.0, 5.0, 5.0])
    thetas = [torch.tensor([6.0, 5.0, 5.0, 5.0]), torch.tensor([5.0, 3.0, 5.0, 5.0])]
    assert pcb(base, thetas, keep=1.0).tolist() == pytest.approx([6.0, 3.0, 5.0, 5.0])


def test_where_nobody_has_moved_the_ancestor_stays() -> None:
    base = torch.tensor([1.0, 2.0, 3.0])
    assert pcb(base, [base, base]).tolist() == base.tolist()


def test_experts_that_agree_are_that_expert_where_they_moved_most() -> None:
    base, moved = torch.zeros(10), torch.arange(10.0)
    merged = pcb(base, [moved, moved], keep=0.3)
    assert merged[7:].tolist() == pytest.approx([7.0, 8.0, 9.0])
    assert merged[:7].tolist() == [0.0] * 7


def test_rows_are_spread_by_their_own_range() -> None:
    assert spread(torch.tensor([[1.0, 3.0, 2.0], [4.0, 4.0, 4.0]])).tolist() == [[0, 1, 0.5], [0, 0, 0]]
    assert clipped(torch.tensor([[1.0, 3.0, 2.0, 0.0]]), 0.5).tolist() == [[1, 3, 2, 1]]


@pytest.mark.parametrize("keep", [0.0, 1.5])
def test_a_part_is_a_part(keep: float) -> None:
    with pytest.raises(ValueError, match="over 0 and at most 1"):
        pcb(torch.zeros(2), [torch.ones(2)], keep=keep)


def test_an_average_is_weighted() -> None:
    thetas = [torch.tensor([0.0, 4.0]), torch.tensor([4.0, 0.0])]
    assert average(thetas).tolist() == [2, 2]
    assert average(thetas, [3, 1]).tolist() == [1, 3]
    assert average([thetas[0]] * 3, [0.2, 0.3, 0.1]).tolist() == pytest.approx([0, 4])


@pytest.mark.parametrize("weights", [[0.0, 0.0], [1.0], [2.0, -1.0]])
def test_weights_that_make_no_mean_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="2 experts cannot have the weights"):
        average([torch.zeros(1), torch.ones(1)], weights)
