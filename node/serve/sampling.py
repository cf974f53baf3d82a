"""One token from a distribution: greedy, or drawn at a temperature from the nucleus. Pure but for its own generator.

Each choice has a generator of its own, and takes one number from it per token. So the same seed gives the same tokens
whatever else is in the batch, as far as its log-probabilities are the same; those of another batch size differ in the
last bits, which moves a draw only where it falls within them of a border.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.node.serve.scorer import LogProbs
from shoal.protocol.errors import LocalError

FEW = 1024  # tokens, that mostly hold a nucleus


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen; temperature 0 takes the most probable one, the lowest of several."""

    temperature: float = 1.0
    top_p: float = 1.0  # from the fewest tokens that have this probability together (Holtzman et al., arXiv 1904.09751)
    seed: int = 0


class Sampler:
    """The draws of one choice."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._generator = np.random.Generator(np.random.PCG64(sampling.seed))

    def draw(self, scores: LogProbs) -> int:
        """A token for log-probabilities (V,), which need not be normalised; LocalError if they are no numbers."""
        if not np.isfinite(scores.max()):
            raise LocalError("the model's probabilities are no numbers: its training has diverged")
        if self._sampling.temperature == 0:
            return int(scores.argmax())
        scaled = scores.astype(np.float64) / self._sampling.temperature
        weights = np.exp(scaled - scaled.max())
        if self._sampling.top_p < 1:
            weights = nucleus(weights, self._sampling.top_p)
        sums = np.cumsum(weights)
        drawn = int(np.searchsorted(sums, self._generator.random() * sums[-1], side="right"))
        return min(drawn, int(np.flatnonzero(weights)[-1]))  # rounding may reach the very end


def nucleus(weights: np.ndarray, share: float) -> np.ndarray:
    """`weights` (V,), without all but the fewest that make up `share` of their sum; the largest always stays."""
    wanted = share * weights.sum()
    likely = np.arange(len(weights))
    if len(weights) > FEW:  # to sort all of a large vocabulary takes longer than a small model's step
        few = np.sort(np.argpartition(-weights, FEW)[:FEW])
        likely = few if weights[few].sum() > wanted else likely
    order = likely[np.argsort(-weights[likely], kind="stable")]
    kept = order[: int(np.searchsorted(np.cumsum(weights[order]), wanted, side="left")) + 1]
    cut = np.zeros_like(weights)
    cut[kept] = weights[kept]
    return cut


def most_probable(scores: LogProbs, count: int) -> list[int]:
    """The `count` tokens with the highest of `scores` (V,), the highest first."""
    count = min(count, len(scores))
    found = np.argpartition(-scores, count - 1)[:count]
    return [int(each) for each in found[np.argsort(-scores[found], kind="stable")]]
