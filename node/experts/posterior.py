"""How much to trust each expert: a posterior over domains, and the mixture by it.

An ensemble treats its experts as the domains of a generative model: a text comes from one domain j with a prior p(j),
and the tokens read so far are evidence for the domain (Branch-Train-Merge, arXiv 2208.03306):

    p(j | x_<t) ~ p(j) prod_{s<t} p_j(x_s | x_<s)        p(x_t | x_<t) = sum_j p(j | x_<t) p_j(x_t | x_<t)

All is in logarithms. A lost expert gets a prior of zero (minus infinity), so the others' shares grow by the rule.

The cached prior is a moving average of posteriors over texts that are not scored: p <- (1 - d) p + d posterior with
the decay d, from a uniform start. Here d is constant. The released code of HDEE uses d^(i+1) for the i-th text, which
soon vanishes, and estimates the prior on the same texts that it reports on.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, log

import torch
from torch import Tensor

DECAY = 0.3  # of the prior, per text: the authors' value


def posterior(log_prior: Tensor, log_likelihood: Tensor) -> Tensor:
    """log p(j | x_<t), (..., E), from log p(j), (E,), and each expert's log p_j(x_<t), (..., E)."""
    return torch.log_softmax(log_prior + log_likelihood, dim=-1)


def sparse(log_posterior: Tensor, k: int) -> Tensor:
    """The k most probable experts' log-shares, renormalised, and minus infinity for the others: (..., E)."""
    experts = log_posterior.shape[-1]
    if not 1 <= k <= experts:
        raise ValueError(f"top {k} of {experts} experts")
    kept = log_posterior.topk(k, dim=-1)
    alone = torch.full_like(log_posterior, -inf).scatter(-1, kept.indices, kept.values)
    return torch.log_softmax(alone, dim=-1)


def mixture(log_shares: Tensor, log_probs: Tensor) -> Tensor:
    """log p(x_t | x_<t), (..., V), from log-shares (..., E) and each expert's prediction (..., E, V).

    Predictions of experts with share zero are ignored, even NaN.
    """
    shares = log_shares[..., None]
    return torch.logsumexp(torch.where(shares == -inf, -inf, shares + log_probs), dim=-2)


def uniform(experts: int) -> Tensor:
    """The uniform prior, log p(j), (E,) in float64."""
    return torch.full((experts,), -log(experts), dtype=torch.float64)


def cached_prior(log_posteriors: Iterable[Tensor], experts: int, decay: float = DECAY) -> Tensor:
    """The cached prior, log p(j), (E,), after the posteriors (E,) of texts, one after the other."""
    assert 0 < decay <= 1
    prior = uniform(experts).exp()
    for each in log_posteriors:
        prior = prior * (1 - decay) + each.to(prior.dtype).exp() * decay
    return prior.log()
