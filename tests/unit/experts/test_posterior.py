"""How an ensemble weighs its experts: golden numbers, limits, and experts that are lost."""

from __future__ import annotations

from math import inf

import pytest
import torch

from shoal.node.experts.posterior import cached_prior, mixture, posterior, sparse, uniform


def test_the_golden_numbers_of_two_experts() -> None:
    """p(x_1) = (0.5, 0.1) makes (5/6, 1/6), and a next token of (0.5, 0.1) is 0.4333 probable."""
    shares = posterior(uniform(2), torch.tensor([0.5, 0.1], dtype=torch.float64).log())
    assert shares.exp().tolist() == pytest.approx([5 / 6, 1 / 6], abs=1e-15)
    mixed = mixture(shares, torch.tensor([[0.5], [0.1]], dtype=torch.float64).log())
    assert mixed.exp().item() == pytest.approx(0.433333, abs=5e-7)


def test_identical_experts_are_one() -> None:
    torch.manual_seed(1)
    predictions = torch.log_softmax(torch.randn(7, 1, 30, dtype=torch.float64), -1).expand(7, 4, 30)
    shares = posterior(uniform(4), torch.randn(7, 4, dtype=torch.float64))
    assert torch.allclose(mixture(shares, predictions), predictions[:, 0], atol=1e-12)


def test_a_prior_of_one_expert_is_that_expert() -> None:
    torch.manual_seed(2)
    prior = torch.tensor([-inf, 0.0, -inf], dtype=torch.float64)
    predictions = torch.log_softmax(torch.randn(3, 30, dtype=torch.float64), -1)
    shares = posterior(prior, torch.tensor([-1.0, -900.0, -2.0]))
    assert torch.allclose(mixture(shares, predictions), predictions[1], atol=1e-15)


def test_an_expert_that_is_lost_counts_for_nothing_whatever_it_says() -> None:
    shares = posterior(torch.tensor([0.0, -inf]), torch.tensor([-3.0, 0.0]))
    mixed = mixture(shares, torch.tensor([[0.25, 0.75], [float("nan"), inf]]).log())
    assert mixed.exp().tolist() == pytest.approx([0.25, 0.75])


def test_a_mixture_is_a_distribution_over_long_texts() -> None:
    """Likelihoods of thousands of tokens are far below the least float."""
    torch.manual_seed(3)
    predictions = torch.log_softmax(torch.randn(5, 30, dtype=torch.float64), -1)
    mixed = mixture(posterior(uniform(5), torch.randn(5) * 1e5 - 1e6), predictions)
    assert mixed.exp().sum().item() == pytest.approx(1.0)


def test_the_k_most_probable_share_what_there_is() -> None:
    shares = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]).log()
    assert sparse(shares, 2)[0].exp().tolist() == pytest.approx([0.625, 0.375, 0.0])
    assert sparse(shares, 1)[1].exp().tolist() == [0.0, 0.0, 1.0]
    assert torch.allclose(sparse(shares, 3), shares)
    for k in (0, 4):
        with pytest.raises(ValueError, match=f"top {k} of 3"):
            sparse(shares, k)


def test_the_cached_prior_is_a_moving_average() -> None:
    """By hand, from (1/2, 1/2): 0.7 x 0.5 + 0.3 x 1 = 0.65; then 0.7 x 0.65 + 0.3 x 0.2 = 0.515."""
    seen = [torch.tensor([1.0, 0.0]).log(), torch.tensor([0.2, 0.8]).log()]
    assert cached_prior(seen, 2).exp().tolist() == pytest.approx([0.515, 0.485])
    assert cached_prior([], 4).exp().tolist() == pytest.approx([0.25] * 4)


def test_late_texts_move_the_prior_as_much_as_early_ones() -> None:
    one, other = torch.tensor([1.0, 0.0]).log(), torch.tensor([0.0, 1.0]).log()
    prior = cached_prior([one] * 100 + [other], 2).exp()
    assert prior[1].item() == pytest.approx(0.3)
