"""One text that is being written: draws its tokens, detects its end, and produces the text that goes out.

Pure, except for its random generator. Each choice has its own generator, and uses one number of it per token. So the
same seed gives the same tokens whatever else is in the batch, as long as the log-probabilities are the same. With
another batch size they differ in the last bits, which changes a draw only if it lies that close to a border.

Text goes out as soon as it is known not to be the beginning of a stop string.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from shoal.node.inference.scorer import LogProbs
from shoal.node.training.data.vocabulary import Vocabulary
from shoal.protocol.base.errors import LocalError

FEW = 1024  # tokens that mostly contain the whole nucleus
LOWEST = -9999.0  # stands for minus infinity, which JSON lacks; OpenAI uses the same value

Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; temperature 0 takes the most probable token, of equals the lowest."""

    temperature: float = 1.0
    top_p: float = 1.0  # draw from the fewest tokens with this total probability (nucleus sampling, arXiv 1904.09751)
    seed: int = 0


class Sampler:
    """Draws the tokens of one choice."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._generator = np.random.Generator(np.random.PCG64(sampling.seed))

    def draw(self, scores: LogProbs) -> int:
        """A token by log-probabilities (V,), which need not be normalised; LocalError if they are NaN."""
        if not np.isfinite(scores.max()):
            raise LocalError(
                "the model's probabilities are no numbers: its training has diverged", code="model-diverged"
            )
        if self._sampling.temperature == 0:
            return int(scores.argmax())
        scaled = scores.astype(np.float64) / self._sampling.temperature
        weights = np.exp(scaled - scaled.max())
        if self._sampling.top_p < 1:
            weights = nucleus(weights, self._sampling.top_p)
        sums = np.cumsum(weights)
        drawn = int(np.searchsorted(sums, self._generator.random() * sums[-1], side="right"))
        return min(drawn, int(np.flatnonzero(weights)[-1]))  # rounding may give an index past the last weight


def nucleus(weights: np.ndarray, share: float) -> np.ndarray:
    """`weights` (V,) with zeros for all but the fewest that sum to `share` of the total; the largest always stays."""
    wanted = share * weights.sum()
    likely = np.arange(len(weights))
    if len(weights) > FEW:  # sorting a large vocabulary takes longer than a step of a small model
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
    """Finds the first of several stop strings in a text that comes in parts."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [each for each in stops if each]
        self._held = ""
        self.found = False  # whether a stop string has ended the text

    def push(self, text: str) -> str:
        """Take the next part. Returns the text that can go out now: none after a stop string."""
        if self.found:
            return ""
        self._held += text
        places = [place for place in (self._held.find(stop) for stop in self._stops) if place >= 0]
        if places:
            self.found = True
            return self._release(min(places))
        return self._release(len(self._held) - self._possible_stop())

    def flush(self) -> str:
        """The text that was held back, when the text ends without a stop string."""
        return "" if self.found else self._release(len(self._held))

    def _release(self, count: int) -> str:
        out, self._held = self._held[:count], self._held[count:]
        return out

    def _possible_stop(self) -> int:
        """How many characters at the end may be the beginning of a stop string."""
        most = max((len(stop) - 1 for stop in self._stops), default=0)
        for count in range(min(most, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-count:]) for stop in self._stops):
                return count
        return 0


@dataclass(frozen=True, slots=True)
class Job:
    """One text to write: one choice of a request."""

    prompt: tuple[int, ...]
    max_tokens: int  # to write, at least one
    sampling: Sampling
    stops: tuple[str, ...] = ()
    ignore_end: bool = False  # go on after the token that ends a text; it adds no characters
    alternatives: int | None = None  # how many of the most probable tokens to report; None: no log-probabilities at all


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One token's log-probability and the best alternatives, by the model itself, whatever the temperature."""

    text: str
    start: int  # its offset in the written text, in characters
    logprob: float
    top: tuple[tuple[str, float], ...] = ()  # the most probable tokens in this place


@dataclass(frozen=True, slots=True)
class Delta:
    """What one token adds to a text; `finish` is set on the last one."""

    text: str
    tokens: int  # of the text so far
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish: Finish | None = None
    version: str = ""  # of the weights that write the text
    notes: Mapping[str, Any] = field(default_factory=dict)  # with the last one: Scorer.notes


class Composer:
    """Turns predictions into tokens, and tokens into text."""

    def __init__(self, job: Job, vocabulary: Vocabulary) -> None:
        self._job, self._vocabulary = job, vocabulary
        self._sampler = Sampler(job.sampling)
        self._writer, self._stops = vocabulary.detokenizer(job.prompt), Stops(job.stops)
        self._tokens = 0
        self._made, self._out = 0, 0  # characters that were made of tokens, and that have gone out
        self._logprobs: list[TokenLogprobs] = []

    def next(self, scores: LogProbs) -> tuple[int, Delta]:
        """Draw the next token by its log-probabilities (V,). Returns the token, and what it adds to the text."""
        known = scores[: self._vocabulary.size]
        token = self._sampler.draw(known)
        if token in self._vocabulary.ends and not self._job.ignore_end:
            return token, self._last("stop")
        self._tokens += 1
        self._note_logprobs(known, token)
        out = self._push("" if token in self._vocabulary.ends else self._writer.push(token))
        if self._stops.found:
            return token, self._delta(out, "stop")
        if self._tokens == self._job.max_tokens:
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
        """The delta, with the log-probabilities of those tokens whose text has gone out, at least in part."""
        self._out += len(out)
        ready = len(self._logprobs)
        if finish != "length":
            ready = sum(each.start < self._out for each in self._logprobs)
        logprobs, self._logprobs = tuple(self._logprobs[:ready]), self._logprobs[ready:]
        return Delta(out, self._tokens, logprobs, finish)

    def _note_logprobs(self, scores: LogProbs, token: int) -> None:
        if self._job.alternatives is None:
            return
        best = most_probable(scores, self._job.alternatives) if self._job.alternatives else []
        top = tuple((self._vocabulary.shown(each), max(LOWEST, float(scores[each]))) for each in best)
        self._logprobs.append(TokenLogprobs(self._vocabulary.shown(token), self._made, float(scores[token]), top))
