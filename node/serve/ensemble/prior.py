"""Which expert to believe before a word is read: their cached prior (node/experts/posterior.py), by a text of its own.

The text is cut into windows side by side, as in node/experts/evaluation.py. Only the last windows count: with the decay
of 0.3 those before them weigh less than 1e-9 together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from shoal.node.experts.posterior import cached_prior, posterior
from shoal.node.serve.batch import CHUNK
from shoal.node.serve.ensemble.belief import Heard
from shoal.node.serve.expert import Expert
from shoal.node.serve.scorer import Piece

WINDOWS = 64
SLOT = 0

Window = tuple[int, ...]


def last_windows(tokens: Sequence[int], limit: int) -> tuple[Window, ...]:
    """The last windows of at most `limit` tokens; each begins with the token that ends the one before."""
    step = limit - 1
    starts = range(0, len(tokens) - 1, step)
    return tuple(tuple(tokens[start : start + limit]) for start in starts[-WINDOWS:])


def foreseen(expert: Expert, windows: Sequence[Window]) -> tuple[float, ...]:
    """log p of each window's tokens but the first. Nobody else may use the expert meanwhile; it is empty afterwards.

    ShoalError if the expert does not say.
    """
    return tuple(_log_likelihood(expert, window) for window in windows)


def prior_of(seen: Sequence[Sequence[float]]) -> Tensor:
    """log p(j), (E,), from what each expert had foreseen of the windows of a text."""
    windows = torch.tensor(seen, dtype=torch.float64).T  # (windows, E)
    start = torch.zeros(len(seen), dtype=torch.float64)
    return cached_prior((posterior(start, each) for each in windows), len(seen))


def _log_likelihood(expert: Expert, window: Window) -> float:
    heard = Heard()
    try:
        for chunk in _chunks(window):
            answer = expert.weigh([Piece(SLOT, chunk)])
            for error in answer.failed.values():
                raise error
            heard.add(chunk, answer.rows[0], float(answer.within[0]))
    finally:
        expert.end(SLOT)
    return heard.log_likelihood


def _chunks(window: Window) -> Iterator[Window]:
    return (window[start : start + CHUNK] for start in range(0, len(window), CHUNK))
