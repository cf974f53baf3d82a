"""Draws: greedy, by temperature, from the nucleus, and the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.node.inference.engine.sequence import Sampler, Sampling, most_probable, nucleus
from shoal.protocol.base.errors import LocalError

SHARES = np.array([0.5, 0.25, 0.15, 0.1])
SCORES = np.log(SHARES).astype(np.float32)


def draws(count: int = 4000, **settings: float) -> np.ndarray:
    sampler = Sampler(Sampling(**{"seed": 7, **settings}))  # type: ignore[arg-type]
    return np.bincount([sampler.draw(SCORES) for _ in range(count)], minlength=4) / count


def test_draws_have_the_distribution_that_was_given() -> None:
    assert np.abs(draws() - SHARES).max() < 0.03


def test_temperature_sharpens_and_zero_takes_the_best() -> None:
    sharp = SHARES**2 / (SHARES**2).sum()
    assert np.abs(draws(temperature=0.5) - sharp).max() < 0.03
    assert draws(temperature=0)[0] == 1
    tie = np.array([-3.0, -1.0, -1.0], np.float32)
    assert Sampler(Sampling(temperature=0)).draw(tie) == 1


@pytest.mark.parametrize(("share", "kept"), [(0.0, 1), (0.5, 1), (0.51, 2), (0.75, 2), (0.9, 3), (0.95, 4), (1.0, 4)])
def test_the_nucleus_is_the_fewest_tokens_that_make_up_its_share(share: float, kept: int) -> None:
    assert np.count_nonzero(nucleus(SHARES, share)) == kept
    assert (draws(500, top_p=share)[kept:] == 0).all()


def test_the_nucleus_of_a_large_vocabulary_is_the_same() -> None:
    random = np.random.default_rng(3)
    for weights in (random.random(5000), np.exp(4 * random.standard_normal(5000))):
        for share in (0.1, 0.5, 0.9, 0.999):
            order = np.argsort(-weights)
            count = int(np.searchsorted(np.cumsum(weights[order]), share * weights.sum())) + 1
            assert set(np.flatnonzero(nucleus(weights, share))) == set(order[:count])


def test_a_seed_gives_the_same_draws_again() -> None:
    def some(seed: int) -> list[int]:
        sampler = Sampler(Sampling(seed=seed))
        return [sampler.draw(SCORES) for _ in range(50)]

    assert some(1) == some(1) != some(2)


def test_what_is_impossible_is_never_drawn() -> None:
    scores = np.array([-np.inf, 0.0, -np.inf], np.float32)
    sampler = Sampler(Sampling(temperature=2.0, seed=1))
    assert {sampler.draw(scores) for _ in range(100)} == {1}


def test_a_diverged_model_is_an_error() -> None:
    with pytest.raises(LocalError, match="diverged"):
        Sampler(Sampling()).draw(np.array([0.0, np.nan], np.float32))


def test_the_most_probable_come_first() -> None:
    assert most_probable(SCORES[::-1].copy(), 2) == [3, 2]
    assert most_probable(SCORES, 9) == [0, 1, 2, 3]
