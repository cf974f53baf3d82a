"""Which experts one sequence believes, and how far: Bayes over what each foresaw of it. It has no clock and no thread.

Rules:
- Every expert whose prior is above zero reads the prompt. Their shares are the posterior by all tokens that a sequence
  has so far, of the prompt and written (node/experts/posterior.py).
- With `k` the experts are chosen once: the k with the largest shares when the prompt has been read. Only they read what
  is written, and their shares among each other go on following it. Otherwise all would have to read every token, if
  only for their shares, and the k would cost what all cost.
- Who fails is out of this sequence for good, and the others' shares grow by the rule. If it was among the k, the next
  by the shares at the choice takes its place, and first reads what was written since.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
import torch
from torch import Tensor

from shoal.node.experts.posterior import mixture, posterior, sparse
from shoal.node.inference.scorer import LogProbs

FLOOR = -1e4  # nats of a piece: who gave a token no chance at all is as good as out, but the sum stays a number

Tokens = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Heard:
    """What one expert has said of one sequence."""

    log_likelihood: float = 0.0  # of all tokens but the first, which nobody foresees
    row: LogProbs | None = None  # (V,), of what comes next

    def add(self, tokens: Tokens, row: LogProbs, within: float) -> None:
        """The answer to a piece."""
        first = 0.0 if self.row is None else float(self.row[tokens[0]])
        self.log_likelihood += max(FLOOR, first + within)
        self.row = row.copy()  # it may outlive the others of its call


class Belief:
    """Of one sequence, about experts 0 to E - 1."""

    def __init__(self, log_prior: Tensor, k: int | None) -> None:
        """`log_prior`: (E,) in float64; `k`: how many write, None for all."""
        self._log_prior, self._k = log_prior, k
        self._heard = [Heard() for _ in log_prior]
        self._open = [number for number, each in enumerate(log_prior.tolist()) if each > -inf]
        self._reserve: list[int] | None = None  # since the choice: who could take a place, the most probable first
        self._since: list[int] = []  # tokens since the choice
        self.lost: list[int] = []

    @property
    def experts(self) -> tuple[int, ...]:
        """Who reads the next piece; nobody if all have failed."""
        return tuple(self._open)

    def read(self, tokens: Tokens) -> None:
        """What is asked about next."""
        if self._reserve is not None:
            self._since += tokens

    def hear(self, number: int, tokens: Tokens, row: LogProbs, within: float) -> None:
        """An expert's answer to tokens that it was given."""
        self._heard[number].add(tokens, row, within)

    def lose(self, number: int) -> tuple[int, Tokens] | None:
        """An expert has failed: who takes its place, and what that one must read first; None if nobody does."""
        self._open.remove(number)
        self.lost.append(number)
        if not self._reserve:
            return None
        self._open.append(self._reserve.pop(0))
        return self._open[-1], tuple(self._since)

    def choose(self) -> None:
        """The prompt has been read: with `k`, from now on only the most probable are asked. Once is enough."""
        if self._k is None or self._reserve is not None:
            return
        log_posterior = self._log_shares()
        kept = sparse(log_posterior, min(self._k, len(self._open)))
        order = torch.argsort(log_posterior, descending=True, stable=True).tolist()
        self._reserve = [number for number in order if number in self._open and kept[number] == -inf]
        self._open = [number for number in self._open if kept[number] > -inf]

    def shares(self) -> dict[int, float]:
        """The posterior of those who write; they sum to 1."""
        log_shares = self._log_shares().tolist()
        return {number: float(np.exp(log_shares[number])) for number in sorted(self._open)}

    def scores(self) -> LogProbs:
        """log p of the next token, (V,), by the mixture; all who write have answered."""
        rows = [self._heard[number].row for number in self._open]
        if len(rows) == 1:
            assert rows[0] is not None
            return rows[0]
        log_shares = self._log_shares()[self._open].float()
        mixed: LogProbs = mixture(log_shares, torch.from_numpy(np.stack(rows))).numpy()  # type: ignore[arg-type]
        return mixed

    def _log_shares(self) -> Tensor:
        """log p(j | x), (E,), minus infinity for who does not write."""
        open_prior = torch.full_like(self._log_prior, -inf)
        open_prior[self._open] = self._log_prior[self._open]
        foreseen = torch.tensor([each.log_likelihood for each in self._heard], dtype=torch.float64)
        return posterior(open_prior, foreseen)
