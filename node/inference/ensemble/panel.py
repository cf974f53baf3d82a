"""A panel: the experts that are available at one time, and their prior.

A sequence keeps the panel that it began with, even if experts come or go. The prior is the cached prior of
node/experts/posterior.py, estimated on a text that is cut into adjacent windows as in node/experts/evaluation.py. Only
the last windows are used: with a decay of 0.3 all earlier ones together weigh less than 1e-9.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from blake3 import blake3
from torch import Tensor

from shoal.node.base.textfile import read_text
from shoal.node.experts.posterior import cached_prior, posterior
from shoal.node.inference.engine.batch import CHUNK
from shoal.node.inference.ensemble.belief import Evidence
from shoal.node.inference.scorer import Piece, Scorer
from shoal.node.training.data.vocabulary import Vocabulary
from shoal.protocol.base.errors import LocalError

VERSION_LENGTH = 16  # characters
WINDOWS = 64
SLOT = 0

Window = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Member:
    """One expert. Only `trouble` changes; it belongs to the engine's thread."""

    name: str
    key: str  # identifies the weights
    expert: Scorer
    likelihoods: tuple[float, ...] = ()  # log p of each window of the text that the prior is estimated on
    made_of: tuple[str, ...] = ()  # if it is a merge, the names of the merged experts
    trouble: str = ""  # why its last call failed; empty if it did not


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """Experts and their prior."""

    members: tuple[Member, ...]
    log_prior: Tensor  # (E,) in float64
    k: int | None  # how many write each text; None: all
    missing: tuple[str, ...] = ()  # names of experts that should be here, but are not available now

    @property
    def names(self) -> dict[str, str]:
        """The members' names by their keys."""
        return {each.key: each.name for each in self.members}

    @property
    def version(self) -> str:
        """Identifies the experts, the prior and k, in letters and digits."""
        priors = [f"{each:.6f}" for each in self.log_prior.tolist()]
        return version_of([*(each.key for each in self.members), *priors, str(self.k)])


def version_of(parts: Iterable[str]) -> str:
    """A short hash of all that tells one mixture of experts from another."""
    return blake3("\n".join(parts).encode()).hexdigest()[:VERSION_LENGTH]


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """A sentence on which experts there are now, and which were added or removed; both arguments are names by keys."""
    said = [f"experts: {', '.join(after.values())}"]
    for word, these, those in (("added", after, before), ("removed", before, after)):
        if only := [name for key, name in these.items() if key not in those]:
            said.append(f"{word}: {', '.join(only)}")
    return "; ".join(said)


def windows_of(path: str, vocabulary: Vocabulary, limit: int) -> tuple[Window, ...]:
    """The windows of the text on which a prior is estimated; LocalError if it cannot be read, or is too short."""
    text = read_text(Path(path), "the text for the prior,")
    windows = last_windows(vocabulary.encode(text, special=False), limit)
    if not windows:
        raise LocalError(
            f"the text for the prior, {path}, has no two tokens: name a longer one with --prior", code="data-empty"
        )
    return windows


def last_windows(tokens: Sequence[int], limit: int) -> tuple[Window, ...]:
    """The last WINDOWS windows of at most `limit` tokens; each begins with the last token of the one before."""
    step = limit - 1
    starts = range(0, len(tokens) - 1, step)
    return tuple(tuple(tokens[start : start + limit]) for start in starts[-WINDOWS:])


def log_likelihoods(expert: Scorer, windows: Sequence[Window]) -> tuple[float, ...]:
    """log p of each window's tokens except the first. Uses the expert's slot SLOT, which is empty afterwards.

    ShoalError if the expert fails.
    """
    return tuple(_log_likelihood(expert, window) for window in windows)


def prior_of(likelihoods: Sequence[Sequence[float]]) -> Tensor:
    """log p(j), (E,), from each expert's log-likelihoods of the windows of a text."""
    windows = torch.tensor(likelihoods, dtype=torch.float64).T  # (windows, E)
    start = torch.zeros(len(likelihoods), dtype=torch.float64)
    return cached_prior((posterior(start, each) for each in windows), len(likelihoods))


def _log_likelihood(expert: Scorer, window: Window) -> float:
    evidence = Evidence()
    try:
        for chunk in _chunks(window):
            answer = expert.extend([Piece(SLOT, chunk)], within=True)
            for error in answer.failed.values():
                raise error
            evidence.add(chunk, answer.rows[0], float(answer.within[0]))
    finally:
        expert.end(SLOT)
    return evidence.log_likelihood


def _chunks(window: Window) -> Iterator[Window]:
    return (window[start : start + CHUNK] for start in range(0, len(window), CHUNK))
