"""How far to trust each expert: a posterior over domains, and the mixture by it.

An ensemble treats its experts as the domains of a generative model: a text comes from one domain j, with a prior p(j),
and all that has been read of it says which (Branch-Train-Merge, arXiv 2208.03306):

    p(j | x_<t) ~ p(j) prod_{s<t} p_j(x_s | x_<s)        p(x_t | x_<t) = sum_j p(j | x_<t) p_j(x_t | x_<t)

All is in logarithms. An expert that is lost is one of prior zero (minus infinity): the others' shares grow by the rule.

The prior is cached, not uniform: the moving average of posteriors over texts that nobody is scored on. With the decay
d it is p <- (1 - d) p + d posterior, from a uniform start; d stays what it is, while the released code of HDEE takes
d^(i+1) for the i-th text, which is soon nothing, and estimates the prior on the very texts that it reports on.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, log

import torch
from torch import Tensor

DECAY = 0.3  # of the prior, for each text: the authors'


def posterior(log_prior: Tensor, log_likelihood: Tensor) -> Tensor:
    """log p(j | x_<t), (..., E), from log p(j), (E,), and each expert's log p_j(x_<t), (..., E)."""
    return torch.log_softmax(log_prior + log_likelihood, dim=-1)


def sparse(log_posterior: Tensor, k: int) -> Tensor:
    """The k most probable experts' shares, which sum to 1, and minus infinity for the others; (..., E)."""
    experts = log_posterior.shape[-1]
    if not 1 <= k <= experts:
        raise ValueError(f"top {k} of {experts} experts")
    kept = log_posterior.topk(k, dim=-1)
    alone = torch.full_like(log_posterior, -inf).scatter(-1, kept.indices, kept.values)
    return torch.log_softmax(alone, dim=-1)


def mixture(log_shares: Tensor, log_probs: Tensor) -> Tensor:
    """log p(x_t | x_<t), (..., V), from shares (..., E) and each expert's prediction (..., E, V).

    What an expert of share zero says counts for nothing, be it NaN.
    """
    shares = log_shares[..., None]
    return torch.logsumexp(torch.where(shares == -inf, -inf, shares + log_probs), dim=-2)


def uniform(experts: int) -> Tensor:
    """log p(j), (E,) in float64, of experts of whom nothing is known."""
    return torch.full((experts,), -log(experts), dtype=torch.float64)


def cached_prior(log_posteriors: Iterable[Tensor], experts: int, decay: float = DECAY) -> Tensor:
    """log p(j), (E,), after the posteriors of texts one after the other, each (E,)."""
    assert 0 < decay <= 1
    prior = uniform(experts).exp()
    for each in log_posteriors:
        prior = prior * (1 - decay) + each.to(prior.dtype).exp() * decay
    return prior.log()
