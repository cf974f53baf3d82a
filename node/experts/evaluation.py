"""The loss of an ensemble on a text, from its experts' predictions of the text's tokens; nothing is generated.

A text is cut into adjacent windows, as in evaluate.py, and each expert predicts every token except a window's first.
With l_j(t) the expert's log-probability of the token at t, the posterior at t follows from the prior and the sum of l_j
before t, so that no expert gets weight for its prediction of the very token that is scored:

    loss = - mean log sum_j exp(log p(j | x_<t) + l_j(t))

`scores` computes one matrix of log-probabilities (tokens, experts) for a text; posteriors, top-k and priors are
arithmetic on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.node.experts.posterior import DECAY, cached_prior, posterior, sparse
from shoal.node.training.trainer.evaluate import windows

Model = Callable[[Tensor], Tensor]
"""Logits (B, T, V) of what follows each of the tokens (B, T)."""


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """log p_j of each token, (tokens, E) in float64, window after window; and the length of each window."""

    of_tokens: Tensor
    lengths: tuple[int, ...]

    def per_window(self) -> tuple[Tensor, ...]:
        """The same, (length, E) each."""
        return torch.split(self.of_tokens, list(self.lengths))


def scores(models: Sequence[Model], text: Tensor, context: int) -> Scores:
    """Each model's log-probabilities of the tokens of `text`, (n,), with at most `context` tokens before each."""
    rows: list[Tensor] = []
    lengths: list[int] = []
    with torch.inference_mode():
        for batch in windows(text, context):
            tokens = batch.long()
            rows.append(torch.stack([_of_targets(model, tokens) for model in models], dim=-1).flatten(0, 1))
            lengths += [tokens.shape[1] - 1] * len(tokens)
    return Scores(torch.cat(rows), tuple(lengths))


def losses(each: Scores) -> list[float]:
    """Every expert's own loss, in nats per token."""
    return [-float(loss) for loss in each.of_tokens.mean(0)]


def ensemble_loss(each: Scores, log_prior: Tensor, k: int | None = None) -> float:
    """The mixture's loss in nats per token, with the posterior of all experts, or of the `k` most probable ones."""
    total = 0.0
    for window in each.per_window():
        log_shares = posterior(log_prior, _before(window))
        if k is not None:
            log_shares = sparse(log_shares, k)
        total -= float(torch.logsumexp(log_shares + window, dim=-1).sum())
    return total / len(each.of_tokens)


def prior_of(each: Scores, decay: float = DECAY) -> Tensor:
    """The cached prior, log p(j), (E,), by the windows of a text, which must not be scored with it afterwards."""
    found = each.per_window()
    start = torch.zeros(each.of_tokens.shape[1], dtype=torch.float64)
    return cached_prior((posterior(start, window.sum(0)) for window in found), len(start), decay)


def _before(window: Tensor) -> Tensor:
    """For each token of a window, log p_j of all tokens before it: (length, E)."""
    return torch.cumsum(window, dim=0) - window


def _of_targets(model: Model, tokens: Tensor) -> Tensor:
    """log p of each token of (B, T + 1) except the first: (B, T) in float64."""
    logits = model(tokens[:, :-1]).double()
    return torch.log_softmax(logits, dim=-1).gather(-1, tokens[:, 1:, None])[..., 0]
