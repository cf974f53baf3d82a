"""A cache changes nothing: cached scores are those of the whole sequence, whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from shoal.node.inference.engine.batch import Batch
from shoal.node.inference.engine.sequence import Sampling
from shoal.node.inference.local import LlamaScorer, PlainScorer
from shoal.node.inference.scorer import Piece, Scorer
from shoal.node.manifest.manifest import ModelSpec
from shoal.node.training.data.vocabulary import ByteVocabulary
from tests.unit.serve.kit import SPEC, Collecting, job, llama_scorer, run, tiny

TOKENS = [int(each) for each in torch.randint(0, 256, (200,), generator=torch.Generator().manual_seed(1))]


def expected(tokens: list[int], spec: ModelSpec = SPEC) -> np.ndarray:
    with torch.inference_mode():
        return torch.log_softmax(tiny(spec)(torch.tensor([tokens]))[0, -1], -1).numpy()


def plain_scorer() -> PlainScorer:
    return PlainScorer(tiny(), torch.device("cpu"), vocab=256, limit=200, slots=4, version="v1")


SPECS = [SPEC, SPEC.model_copy(update={"kv_heads": 4, "tied": False}), SPEC.model_copy(update={"kv_heads": 1})]


@pytest.mark.parametrize("spec", SPECS, ids=["grouped", "untied", "one"])
def test_cached_scores_are_those_of_the_whole_sequence(spec: ModelSpec) -> None:
    scorer = llama_scorer(spec=spec)
    scorer.extend([Piece(0, tuple(TOKENS[:50]))])
    rows = scorer.extend([Piece(0, tuple(TOKENS[50:130]))])
    np.testing.assert_allclose(rows[0], expected(TOKENS[:130], spec), atol=1e-4)
    for count in range(130, 200):
        rows = scorer.extend([Piece(0, (TOKENS[count],))])
    np.testing.assert_allclose(rows[0], expected(TOKENS, spec), atol=1e-4)


@pytest.mark.parametrize("make", [llama_scorer, plain_scorer])
def test_a_batch_of_unequal_lengths_joined_left_and_joined_again(make: Callable[[], Scorer]) -> None:
    scorer, held = make(), dict[int, list[int]]()
    random = np.random.default_rng(5)
    for _ in range(40):
        pieces = []
        for slot in random.permutation(4)[: random.integers(1, 5)]:
            tokens = held.setdefault(int(slot), [])
            if len(tokens) > 120:
                scorer.end(int(slot))
                tokens.clear()
            count = int(random.integers(1, 30)) if not tokens or random.random() < 0.3 else 1
            more = [int(each) for each in random.integers(0, 256, count)]
            tokens += more
            pieces.append(Piece(int(slot), tuple(more)))
        rows = scorer.extend(pieces)
        assert rows.shape == (len(pieces), 256)
        for piece, row in zip(pieces, rows, strict=True):
            np.testing.assert_allclose(row, expected(held[piece.slot]), atol=1e-4)


def test_rows_are_distributions() -> None:
    rows = llama_scorer().extend([Piece(0, (1, 2)), Piece(1, (3,))])
    np.testing.assert_allclose(np.exp(rows).sum(axis=1), 1, rtol=1e-5)
    assert rows.dtype == np.float32


def test_a_failed_call_leaves_a_slot_that_can_be_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = llama_scorer()
    scorer.extend([Piece(0, tuple(TOKENS[:20]))])
    with monkeypatch.context() as broken:
        broken.setattr(torch, "log_softmax", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            scorer.extend([Piece(0, (1,)), Piece(1, (1, 2))])
    scorer.end(0)
    scorer.end(1)
    rows = scorer.extend([Piece(0, tuple(TOKENS[:7])), Piece(1, tuple(TOKENS[:9]))])
    np.testing.assert_allclose(rows[1], expected(TOKENS[:9]), atol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_text_is_the_same_alone_and_among_others(temperature: float) -> None:
    def written(others: int) -> str:
        batch, mine = Batch(llama_scorer(slots=8), ByteVocabulary(), chunk=16), Collecting()
        for number in range(others):
            batch.join(job("x" * (10 + 7 * number), 60, Sampling(1.0, 1.0, number)), Collecting())
        batch.join(job("sheep", 50, Sampling(temperature, 1.0, 42), ignore_end=True), mine)
        run(batch)
        assert mine.finish == "length"
        return mine.text

    assert written(0) == written(7)


def test_a_model_is_not_asked_for_more_than_its_context() -> None:
    scorer: LlamaScorer = llama_scorer()
    batch, mine = Batch(scorer, ByteVocabulary()), Collecting()
    batch.join(job("x" * 150, 50, ignore_end=True), mine)
    run(batch)
    assert mine.deltas[-1].tokens == 50
