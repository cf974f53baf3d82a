"""How much one sequence trusts each expert: a Bayesian posterior over how well each predicted it. No clock, no thread.

Rules:
- Every expert whose prior is above zero reads the prompt. Their shares are the posterior given all tokens of the
  sequence so far, those of the prompt and those that were written (node/experts/posterior.py).
- With `k`, the k experts with the largest shares are chosen once, when the prompt has been read. Only they read the
  tokens that are written, and only their shares go on changing: if all had to read every token for their shares, k
  experts would cost as much as all.
- An expert that fails is out of this sequence for good, and the others' shares grow by the rule. If it was one of the
  k, the next by the shares at the choice replaces it, after it has read all tokens since then.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
import torch
from torch import Tensor

from shoal.node.experts.posterior import mixture, posterior, sparse
from shoal.node.inference.scorer import LogProbs

LOWEST = -1e4  # nats per piece: an expert that gave a token no chance at all gets no share, but the sum stays finite

Tokens = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Evidence:
    """How one expert has predicted one sequence."""

    log_likelihood: float = 0.0  # of all tokens except the first, which no expert predicts
    row: LogProbs | None = None  # (V,), its prediction of the next token

    def add(self, tokens: Tokens, row: LogProbs, within: float) -> None:
        """Take in the expert's answer to a piece."""
        first = 0.0 if self.row is None else float(self.row[tokens[0]])
        self.log_likelihood += max(LOWEST, first + within)
        self.row = row.copy()  # so that it does not keep the rows of the whole call in memory


class Belief:
    """The shares of experts 0 to E - 1 in one sequence."""

    def __init__(self, log_prior: Tensor, k: int | None) -> None:
        """`log_prior`: (E,) in float64; `k`: how many experts write, None for all."""
        self._log_prior, self._k = log_prior, k
        self._evidence = [Evidence() for _ in log_prior]
        self._open = [number for number, each in enumerate(log_prior.tolist()) if each > -inf]
        self._reserve: list[int] | None = None  # after the choice: the other experts, the most probable first
        self._since: list[int] = []  # tokens since the choice
        self.lost: list[int] = []

    @property
    def experts(self) -> tuple[int, ...]:
        """The experts that read the next piece; none if all have failed."""
        return tuple(self._open)

    def read(self, tokens: Tokens) -> None:
        """Note the tokens that the experts are asked about next."""
        if self._reserve is not None:
            self._since += tokens

    def add(self, number: int, tokens: Tokens, row: LogProbs, within: float) -> None:
        """Take in an expert's answer to tokens that it was given (Predictions)."""
        self._evidence[number].add(tokens, row, within)

    def lose(self, number: int) -> tuple[int, Tokens] | None:
        """Drop an expert that has failed. Returns its replacement, if any, and the tokens that this one must read."""
        self._open.remove(number)
        self.lost.append(number)
        if not self._reserve:
            return None
        self._open.append(self._reserve.pop(0))
        return self._open[-1], tuple(self._since)

    def choose(self) -> None:
        """The prompt has been read: with `k`, keep only the most probable experts. Has an effect once only."""
        if self._k is None or self._reserve is not None:
            return
        log_posterior = self._log_shares()
        kept = sparse(log_posterior, min(self._k, len(self._open)))
        order = torch.argsort(log_posterior, descending=True, stable=True).tolist()
        self._reserve = [number for number in order if number in self._open and kept[number] == -inf]
        self._open = [number for number in self._open if kept[number] > -inf]

    def shares(self) -> dict[int, float]:
        """The posterior of the experts that write, by number; the shares sum to 1."""
        log_shares = self._log_shares().tolist()
        return {number: float(np.exp(log_shares[number])) for number in sorted(self._open)}

    def scores(self) -> LogProbs:
        """log p of the next token, (V,), by the mixture; all experts that write must have answered."""
        rows = [self._evidence[number].row for number in self._open]
        if len(rows) == 1:
            assert rows[0] is not None
            return rows[0]
        log_shares = self._log_shares()[self._open].float()
        mixed: LogProbs = mixture(log_shares, torch.from_numpy(np.stack(rows))).numpy()  # type: ignore[arg-type]
        return mixed

    def _log_shares(self) -> Tensor:
        """log p(j | x), (E,), minus infinity for experts that do not write."""
        open_prior = torch.full_like(self._log_prior, -inf)
        open_prior[self._open] = self._log_prior[self._open]
        likelihood = torch.tensor([each.log_likelihood for each in self._evidence], dtype=torch.float64)
        return posterior(open_prior, likelihood)
