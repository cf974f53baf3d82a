"""One text that is being written: how tokens are drawn, where the text stops, and what goes out of it.

Pure but for its own generator. Each choice has a generator of its own, and takes one number from it per token. So the
same seed gives the same tokens whatever else is in the batch, as far as its log-probabilities are the same; those of
another batch size differ in the last bits, which moves a draw only where it falls within them of a border.

Text goes out as it is made, but never a part of what may become a stop sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from shoal.node.inference.scorer import LogProbs
from shoal.node.training.data.vocabulary import Vocabulary
from shoal.protocol.base.errors import LocalError

FEW = 1024  # tokens, that mostly hold a nucleus
LEAST = -9999.0  # instead of minus infinity, which JSON has not; it is OpenAI's

Finish = Literal["stop", "length"]


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


class Stops:
    """Looks for the first of several strings in a text that comes in parts."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [each for each in stops if each]
        self._held = ""
        self.found = False  # whether the text has ended with one

    def push(self, text: str) -> str:
        """What of the text so far can go out now; nothing more once one is found."""
        if self.found:
            return ""
        self._held += text
        places = [place for place in (self._held.find(stop) for stop in self._stops) if place >= 0]
        if places:
            self.found = True
            return self._let_go(min(places))
        return self._let_go(len(self._held) - self._begun())

    def flush(self) -> str:
        """What was held back, when the text ends otherwise."""
        return "" if self.found else self._let_go(len(self._held))

    def _let_go(self, count: int) -> str:
        out, self._held = self._held[:count], self._held[count:]
        return out

    def _begun(self) -> int:
        """Characters at the end that begin one of the strings."""
        most = max((len(stop) - 1 for stop in self._stops), default=0)
        for count in range(min(most, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-count:]) for stop in self._stops):
                return count
        return 0


@dataclass(frozen=True, slots=True)
class Job:
    """One choice of a request."""

    prompt: tuple[int, ...]
    most: int  # tokens to write, at least one
    sampling: Sampling
    stops: tuple[str, ...] = ()
    ignore_end: bool = False  # the token that ends a text is one like others, and stands for nothing
    alternatives: int | None = None  # how many of the most probable tokens are told of; None: of no token anything


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """What is told of one token: of the model's own probabilities, whatever the temperature."""

    text: str
    start: int  # where it begins in the text written, in characters
    logprob: float
    top: tuple[tuple[str, float], ...] = ()  # the most probable ones in its place


@dataclass(frozen=True, slots=True)
class Delta:
    """What a token has added to a text; `finish` says that it was the last."""

    text: str
    tokens: int  # so far
    facts: tuple[TokenFacts, ...] = ()
    finish: Finish | None = None
    version: str = ""  # of the weights that it was written with
    notes: Mapping[str, Any] = field(default_factory=dict)  # with the last one: what the scorer tells (Telling)


class Composer:
    """From scores to tokens to text."""

    def __init__(self, job: Job, vocabulary: Vocabulary) -> None:
        self._job, self._vocabulary = job, vocabulary
        self._sampler = Sampler(job.sampling)
        self._writer, self._stops = vocabulary.detokenizer(job.prompt), Stops(job.stops)
        self._tokens = 0
        self._made, self._out = 0, 0  # characters that tokens stand for, and that have gone out
        self._facts: list[TokenFacts] = []

    def next(self, scores: LogProbs) -> tuple[int, Delta]:
        """The token after what was scored (V,), and what it adds."""
        known = scores[: self._vocabulary.size]
        token = self._sampler.draw(known)
        if token in self._vocabulary.ends and not self._job.ignore_end:
            return token, self._last("stop")
        self._tokens += 1
        self._note(known, token)
        out = self._push("" if token in self._vocabulary.ends else self._writer.push(token))
        if self._stops.found:
            return token, self._delta(out, "stop")
        if self._tokens == self._job.most:
            return token, self._last("length", out)
        return token, self._delta(out, None)

    def _push(self, text: str) -> str:
        self._made += len(text)
        return self._stops.push(text)

    def _last(self, finish: Finish, out: str = "") -> Delta:
        out += self._push(self._writer.flush())
        if self._stops.found:
            return self._delta(out, "stop")
        return self._delta(out + self._stops.flush(), finish)

    def _delta(self, out: str, finish: Finish | None) -> Delta:
        """With facts of those tokens whose text has gone out, at least in part."""
        self._out += len(out)
        ready = len(self._facts)
        if finish != "length":
            ready = sum(each.start < self._out for each in self._facts)
        facts, self._facts = tuple(self._facts[:ready]), self._facts[ready:]
        return Delta(out, self._tokens, facts, finish)

    def _note(self, scores: LogProbs, token: int) -> None:
        if self._job.alternatives is None:
            return
        best = most_probable(scores, self._job.alternatives) if self._job.alternatives else []
        top = tuple((self._vocabulary.shown(each), max(LEAST, float(scores[each]))) for each in best)
        self._facts.append(TokenFacts(self._vocabulary.shown(token), self._made, float(scores[token]), top))
