"""A sequence's belief, against arithmetic by hand."""

from __future__ import annotations

from math import inf, log

import numpy as np
import pytest
import torch

from shoal.node.inference.ensemble.belief import Belief

TWO, THREE = (torch.tensor([1 / n] * n, dtype=torch.float64).log() for n in (2, 3))


def row(*chances: float) -> np.ndarray:
    return np.log(np.array(chances, np.float32))


def hear(belief: Belief, tokens: tuple[int, ...], rows: dict[int, np.ndarray], within: dict[int, float]) -> None:
    belief.read(tokens)
    for number in belief.experts:
        belief.add(number, tokens, rows[number], within[number])


def test_shares_are_bayes_over_all_but_the_first_token() -> None:
    belief = Belief(torch.tensor([0.25, 0.75], dtype=torch.float64).log(), None)
    rows = {0: row(0.9, 0.1), 1: row(0.2, 0.8)}
    hear(belief, (1, 0), rows, {0: log(0.9), 1: log(0.2)})  # the 1 that it begins with tells nothing
    assert belief.shares()[0] == pytest.approx(0.25 * 0.9 / (0.25 * 0.9 + 0.75 * 0.2))
    hear(belief, (0,), rows, {0: 0, 1: 0})
    first, second = 0.25 * 0.9**2, 0.75 * 0.2**2
    assert belief.shares() == {
        0: pytest.approx(first / (first + second)),
        1: pytest.approx(second / (first + second)),
    }
    wanted = (first * 0.9 + second * 0.2) / (first + second)
    np.testing.assert_allclose(np.exp(belief.scores()), [wanted, 1 - wanted], rtol=1e-5)


def test_whose_prior_is_zero_is_never_asked() -> None:
    belief = Belief(torch.tensor([0.0, 1.0], dtype=torch.float64).log(), None)
    assert belief.experts == (1,)


def test_the_k_are_chosen_by_the_prompt_and_stay() -> None:
    belief = Belief(THREE, 2)
    rows = {0: row(0.6, 0.4), 1: row(0.1, 0.9), 2: row(0.7, 0.3)}
    hear(belief, (0, 0), rows, {number: float(rows[number][0]) for number in rows})
    belief.choose()
    assert belief.experts == (0, 2)
    for _ in range(9):  # from here on the one that was left out would have been right
        hear(belief, (1,), rows, dict.fromkeys(rows, 0.0))
        belief.choose()
    assert belief.experts == (0, 2)
    assert belief.shares()[0] > belief.shares()[2], "their shares among each other still follow"


def test_a_place_among_the_k_is_taken_by_the_next_which_reads_what_was_written_since() -> None:
    belief = Belief(THREE, 1)
    rows = {0: row(0.6, 0.4), 1: row(0.1, 0.9), 2: row(0.7, 0.3)}
    hear(belief, (0, 0, 0), rows, {number: 2 * float(rows[number][0]) for number in rows})
    belief.choose()
    assert belief.experts == (2,)
    for token in (1, 0):
        hear(belief, (token,), rows, dict.fromkeys(rows, 0.0))
    belief.read((1,))
    assert belief.lose(2) == (0, (1, 0, 1))
    belief.add(0, (1, 0, 1), rows[0], float(rows[0][0] + rows[0][1]))
    assert (belief.experts, belief.lost) == ((0,), [2])
    np.testing.assert_array_equal(belief.scores(), rows[0])
    assert belief.lose(0) == (1, (1, 0, 1))
    assert belief.lose(1) is None
    assert not belief.experts


def test_who_is_lost_leaves_its_share_to_the_others() -> None:
    belief = Belief(THREE, None)
    rows = {0: row(0.6, 0.4), 1: row(0.1, 0.9), 2: row(0.7, 0.3)}
    hear(belief, (0, 0), rows, {number: float(rows[number][0]) for number in rows})
    assert belief.lose(2) is None
    assert belief.shares() == {0: pytest.approx(6 / 7), 1: pytest.approx(1 / 7)}


def test_what_nobody_thought_possible_leaves_shares_that_are_numbers() -> None:
    belief = Belief(TWO, None)
    rows = {0: row(0.6, 0.4), 1: row(0.5, 0.5)}
    hear(belief, (0, 1, 1), rows, {0: -inf, 1: -inf})
    assert belief.shares() == {0: pytest.approx(0.5), 1: pytest.approx(0.5)}
    assert np.isfinite(belief.scores()).all()


def test_more_than_there_are_is_all() -> None:
    belief = Belief(TWO, 5)
    rows = {0: row(0.6, 0.4), 1: row(0.5, 0.5)}
    hear(belief, (0,), rows, {0: 0.0, 1: 0.0})
    belief.choose()
    assert belief.experts == (0, 1)
