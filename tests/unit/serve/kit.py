"""Parts for tests of inference: a tiny model, a scorer that follows a rule, readers that can be full or gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from shoal.node.inference.chat import PlainChat
from shoal.node.inference.engine.batch import Batch, Output
from shoal.node.inference.engine.sequence import Delta, Job, Sampling
from shoal.node.inference.local import LlamaScorer
from shoal.node.inference.scorer import Piece, Predictions, Scorer
from shoal.node.inference.served import Served
from shoal.node.manifest.manifest import ModelSpec
from shoal.node.training.data.vocabulary import ByteVocabulary
from shoal.node.training.models.decoder import Llama, build

SPEC = ModelSpec(vocab=256, dim=32, layers=2, heads=4, kv_heads=2, hidden=48, context=200)
GREEDY = Sampling(temperature=0.0)


def tiny(spec: ModelSpec = SPEC) -> Llama:
    return build(spec, seed=3)


def llama_scorer(slots: int = 4, spec: ModelSpec = SPEC) -> LlamaScorer:
    return LlamaScorer(tiny(spec), vocab=spec.vocab, limit=spec.context, slots=slots, version="v1")


def served(scorer: Scorer) -> Served:
    return Served("tiny", scorer, ByteVocabulary(), PlainChat(), created=5, sentence="a tiny model")


def job(text: str = "ab", most: int = 8, sampling: Sampling = GREEDY, **more: object) -> Job:
    return Job(tuple(text.encode()), most, sampling, **more)  # type: ignore[arg-type]


class Script(Scorer):
    """A scorer whose next token follows by `rule` from a slot's tokens; it records its calls, and can fail."""

    def __init__(self, rule: Callable[[list[int]], int], slots: int = 4, limit: int = 100_000) -> None:
        self.vocab, self.limit, self.slots, self.version = 256, limit, slots, "s1"
        self._rule = rule
        self.held: dict[int, list[int]] = {}
        self.calls: list[list[Piece]] = []
        self.failure: Exception | None = None

    def extend(self, pieces: Sequence[Piece], within: bool = False) -> Predictions:
        self.calls.append(list(pieces))
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        rows = np.full((len(pieces), self.vocab), -20.0, np.float32)
        for row, piece in zip(rows, pieces, strict=True):
            held = self.held.setdefault(piece.slot, [])
            held.extend(piece.tokens)
            assert len(held) <= self.limit
            row[self._rule(held)] = 0.0
        return Predictions(rows, np.zeros(len(pieces)))

    def end(self, slot: int) -> None:
        self.held.pop(slot, None)


def counting(held: list[int]) -> int:
    """The rule that writes a, b, c ... z, a, ..."""
    return 97 + (held[-1] - 96) % 26


def saying(text: str, after: int) -> Callable[[list[int]], int]:
    """The rule that writes `text` after a prompt of `after` tokens, and then a token that ends it."""
    tokens = [*text.encode(), 0]
    return lambda held: tokens[min(len(held) - after, len(tokens) - 1)]


@dataclass(eq=False)
class Collecting:
    """A reader that keeps all that it is sent."""

    is_gone: bool = False
    has_room: bool = True
    deltas: list[Delta] = field(default_factory=list)
    error: Exception | None = None

    @property
    def text(self) -> str:
        return "".join(each.text for each in self.deltas)

    @property
    def finish(self) -> str | None:
        return self.deltas[-1].finish if self.deltas else None


def hand_out(outputs: Sequence[Output]) -> None:
    for each in outputs:
        assert isinstance(each.reader, Collecting)
        if isinstance(each.content, Delta):
            each.reader.deltas.append(each.content)
        else:
            each.reader.error = each.content


def run(batch: Batch, steps: int = 10_000) -> None:
    for _ in range(steps):
        if not batch.has_work:
            return
        hand_out(batch.step())
