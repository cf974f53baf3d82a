"""Models of transformers: cached and in batches where that is right, and right in any case."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shoal.node.inference.engine.batch import Batch
from shoal.node.inference.library import LibraryScorer, library_scorer
from shoal.node.inference.local import PlainScorer
from shoal.node.inference.scorer import Piece, Scorer
from shoal.node.training.data.vocabulary import ByteVocabulary
from shoal.node.training.models.hf import quietly
from tests.hf_kit import TABLE, needs
from tests.unit.serve.kit import Collecting, job, run

transformers = needs("transformers")

COMMON = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 256}
TABLES: dict[str, dict[str, Any]] = {
    "llama": TABLE,
    "gpt2": {"model_type": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 128, "vocab_size": 256},
    "gpt_neox": {"model_type": "gpt_neox", **COMMON, "intermediate_size": 32},
    "opt": {"model_type": "opt", **COMMON, "ffn_dim": 32, "word_embed_proj_dim": 16, "max_position_embeddings": 128},
    "bloom": {"model_type": "bloom", "hidden_size": 16, "n_layer": 2, "n_head": 2, "vocab_size": 256},
    "mistral": {
        **{"model_type": "mistral", **COMMON, "num_key_value_heads": 1, "intermediate_size": 32, "sliding_window": 8},
    },
    "mamba": {"model_type": "mamba", "hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 256, "state_size": 4},
}


def network(name: str) -> Any:
    table = dict(TABLES[name])
    with quietly(), torch.random.fork_rng(devices=()):
        torch.manual_seed(5)
        config = transformers.AutoConfig.for_model(table.pop("model_type"), **table)
        made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        for weight in made.parameters():  # else the scores of so small a model say little of its context
            weight.data.mul_(3)
    return made


def opened(name: str) -> Scorer:
    return library_scorer(network(name), limit=64, slots=4, version="v1")


def way(scorer: Scorer) -> str:
    if isinstance(scorer, PlainScorer):
        return "anew"
    assert isinstance(scorer, LibraryScorer)
    return "batched" if scorer.is_batched else "one by one"


@pytest.mark.parametrize("name", TABLES)
def test_scores_are_those_of_whole_sequences(name: str) -> None:
    whole, scorer, held = network(name), opened(name), dict[int, list[int]]()
    random = np.random.default_rng(2)
    for _ in range(25):
        pieces = []
        for slot in random.permutation(4)[: random.integers(1, 5)]:
            tokens = held.setdefault(int(slot), [])
            if len(tokens) > 40:
                scorer.end(int(slot))
                tokens.clear()
            count = int(random.integers(1, 12)) if not tokens or random.random() < 0.2 else 1
            more = [int(each) for each in random.integers(1, 256, count)]
            tokens += more
            pieces.append(Piece(int(slot), tuple(more)))
        rows = scorer.extend(pieces)
        for piece, row in zip(pieces, rows, strict=True):
            with torch.inference_mode(), quietly():
                logits = whole(input_ids=torch.tensor([held[piece.slot]]), use_cache=False).logits[0, -1]
            np.testing.assert_allclose(row, torch.log_softmax(logits, -1).numpy(), atol=1e-4, err_msg=way(scorer))


def test_common_models_are_served_in_batches() -> None:
    assert {name: way(opened(name)) for name in ("llama", "gpt2", "gpt_neox")} == {
        "llama": "batched",
        "gpt2": "batched",
        "gpt_neox": "batched",
    }


def test_a_model_that_counts_wrongly_is_asked_another_way(caplog: pytest.LogCaptureFixture) -> None:
    made = network("llama")
    forward = made.forward

    def without_positions(**settings: Any) -> Any:
        settings.pop("position_ids", None)
        settings.pop("attention_mask", None)
        return forward(**settings)

    made.forward = without_positions
    with caplog.at_level(logging.WARNING):
        assert way(library_scorer(made, limit=64, slots=4, version="v1")) == "one by one"
    assert "cannot be served in batches" in caplog.text

    def without_cache(**settings: Any) -> Any:
        return forward(**settings | {"past_key_values": None})

    made.forward = without_cache
    assert way(library_scorer(made, limit=64, slots=4, version="v1")) == "anew"


class Windowed(nn.Module):
    """Keeps to what its cache holds, and whole texts in full, up to a number of tokens; beyond it the two differ."""

    def __init__(self, network: Any, window: int) -> None:
        super().__init__()
        self.network, self.window, self.config, self.device = network, window, network.config, network.device

    def forward(self, input_ids: Tensor, past_key_values: Any = None, **settings: Any) -> Any:
        out = self.network(input_ids=input_ids, past_key_values=past_key_values, **settings)
        if past_key_values is not None and past_key_values.get_seq_length() > self.window:
            out.logits = out.logits.roll(1, -1)
        return out


@pytest.mark.parametrize(("limit", "expected"), [(24, "batched"), (64, "anew")])
def test_a_cache_that_is_wrong_only_in_long_texts_is_not_used_for_them(limit: int, expected: str) -> None:
    made = Windowed(network("llama"), 30)
    assert way(library_scorer(made, limit=limit, slots=1, version="v1")) == expected


def test_dynamic_masks_that_differ_in_long_texts_are_scored_anew() -> None:
    """As doge's, which keeps only so many keys."""
    TABLES["doge"] = {"model_type": "doge", **COMMON, "intermediate_size": 32, "keep_window_size": 8}
    test_scores_are_those_of_whole_sequences("doge")


def test_a_text_is_the_same_alone_and_among_others() -> None:
    def written(others: int) -> str:
        batch, mine = Batch(opened("gpt2"), ByteVocabulary(), chunk=8), Collecting()
        for number in range(others):
            batch.join(job("x" * (1 + 5 * number), 20, ignore_end=True), Collecting())
        batch.join(job("sheep", 30, ignore_end=True), mine)
        run(batch)
        return mine.text

    assert written(0) == written(3)
