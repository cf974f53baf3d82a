"""The experts that are there at one time, and which of them to believe before a word is read.

A sequence keeps the panel that it began with, whatever comes or goes. The prior is the experts' cached prior
(node/experts/posterior.py), by a text of its own: it is cut into windows side by side, as in
node/experts/evaluation.py. Only the last windows count: with the decay of 0.3 those before them weigh less than 1e-9
together.
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
from shoal.node.inference.ensemble.belief import Heard
from shoal.node.inference.scorer import Expert, Piece
from shoal.node.training.data.vocabulary import Vocabulary
from shoal.protocol.base.errors import LocalError

SHOWN = 16  # characters of a version
WINDOWS = 64
SLOT = 0

Window = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Member:
    """One expert. What is read in its file does not change; `trouble` does, and belongs to the engine's thread."""

    name: str
    key: str  # another for other weights
    expert: Expert
    foreseen: tuple[float, ...] = ()  # log p of each window of the text that the prior is estimated on
    made_of: tuple[str, ...] = ()  # the experts that were merged, if it is a merge
    trouble: str = ""  # why its last call has failed, if it has


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """Experts and their prior."""

    members: tuple[Member, ...]
    log_prior: Tensor  # (E,) in float64
    k: int | None  # how many write; None: all
    missing: tuple[str, ...] = ()  # experts that there should be, and cannot be had now

    @property
    def names(self) -> dict[str, str]:
        """The members', by their keys."""
        return {each.key: each.name for each in self.members}

    @property
    def version(self) -> str:
        """In letters and digits; another for other experts, another prior or k."""
        priors = [f"{each:.6f}" for each in self.log_prior.tolist()]
        return version_of([*(each.key for each in self.members), *priors, str(self.k)])


def version_of(said: Iterable[str]) -> str:
    """A name for all that makes one mixture of experts another than the next."""
    return blake3("\n".join(said).encode()).hexdigest()[:SHOWN]


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Which experts there are now, and what has changed, in words; of names by keys."""
    said = [f"experts: {', '.join(after.values())}"]
    for word, these, those in (("added", after, before), ("removed", before, after)):
        if only := [name for key, name in these.items() if key not in those]:
            said.append(f"{word}: {', '.join(only)}")
    return "; ".join(said)


def windows_of(path: str, vocabulary: Vocabulary, limit: int) -> tuple[Window, ...]:
    """Of the text on which a prior is estimated; LocalError if it cannot be read, or is too short."""
    text = read_text(Path(path), "the text for the prior,")
    windows = last_windows(vocabulary.encode(text, special=False), limit)
    if not windows:
        raise LocalError(f"the text for the prior, {path}, has no two tokens: name a longer one with --prior")
    return windows


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
