"""One text that is being written: what is asked for, and what comes of its tokens. Pure but for its generator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from shoal.node.serve.sampling import Sampler, Sampling, most_probable
from shoal.node.serve.scorer import LogProbs
from shoal.node.serve.stops import Stops
from shoal.node.serve.text import Codec

LEAST = -9999.0  # instead of minus infinity, which JSON has not; it is OpenAI's

Finish = Literal["stop", "length"]


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

    def __init__(self, job: Job, codec: Codec) -> None:
        self._job, self._codec = job, codec
        self._sampler = Sampler(job.sampling)
        self._writer, self._stops = codec.writer(job.prompt), Stops(job.stops)
        self._tokens = 0
        self._made, self._out = 0, 0  # characters that tokens stand for, and that have gone out
        self._facts: list[TokenFacts] = []

    def next(self, scores: LogProbs) -> tuple[int, Delta]:
        """The token after what was scored (V,), and what it adds."""
        known = scores[: self._codec.size]
        token = self._sampler.draw(known)
        if token in self._codec.ends and not self._job.ignore_end:
            return token, self._last("stop")
        self._tokens += 1
        self._note(known, token)
        out = self._push("" if token in self._codec.ends else self._writer.push(token))
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
        top = tuple((self._codec.shown(each), max(LEAST, float(scores[each]))) for each in best)
        self._facts.append(TokenFacts(self._codec.shown(token), self._made, float(scores[token]), top))
