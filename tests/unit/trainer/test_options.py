"""What is tried when a batch does not fit: half as much each time, at last with activations recomputed."""

from __future__ import annotations

import pytest

from shoal.node.base.step_options import TrainerOptions


def test_a_whole_batch_is_worked_on_at_once_unless_the_owner_says_otherwise() -> None:
    assert TrainerOptions().at_once(24) == 24
    assert TrainerOptions(micro_batch=5).at_once(24) == 5
    assert TrainerOptions(micro_batch=5).at_once(3) == 3


@pytest.mark.parametrize(
    ("rows", "given", "tried"), [(24, 0, [12, 6, 3, 2, 1]), (24, 7, [4, 2, 1]), (2, 7, [1]), (1, 0, [])]
)
def test_less_is_tried_until_one_sequence_is_left(rows: int, given: int, tried: list[int]) -> None:
    options, seen = TrainerOptions(micro_batch=given, compiled=True), []
    while (less := options.smaller(rows)) is not None and not less.recompute:
        options = less
        seen.append(options.at_once(rows))
    assert seen == tried
    assert less == TrainerOptions(micro_batch=1, recompute=True, compiled=True)
    assert less.smaller(rows) is None


def test_who_recomputes_has_nothing_left_at_one_sequence() -> None:
    options = TrainerOptions(micro_batch=2, recompute=True)
    assert options.smaller(8) == TrainerOptions(micro_batch=1, recompute=True)
    assert TrainerOptions(micro_batch=1, recompute=True).smaller(8) is None


def test_how_steps_are_made_in_words() -> None:
    assert TrainerOptions().in_words(8) == "8 sequences at once"
    assert TrainerOptions(3, True, True).in_words(8) == (
        "8 sequences in micro-batches of 3, activations recomputed, layers compiled"
    )
