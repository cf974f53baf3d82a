"""Bytes from a model: reproducible, bounded, and over where the model ends its text."""

from __future__ import annotations

import torch

from shoal.node.spec.manifest import ModelSpec
from shoal.node.trainer.generate import generate
from shoal.node.trainer.model import Llama, build

SPEC = ModelSpec(dim=16, layers=1, heads=2, kv_heads=1, hidden=16, context=8)


def always(byte: int) -> Llama:
    """A model that has one thing to say."""
    model = build(SPEC, seed=0)

    def logits(tokens: torch.Tensor) -> torch.Tensor:
        assert tokens.shape[1] <= SPEC.context
        return torch.nn.functional.one_hot(torch.full(tokens.shape, byte), 256) * 1e4

    model.forward = logits  # type: ignore[method-assign,assignment]
    return model


def test_the_same_seed_writes_the_same_text() -> None:
    model = build(SPEC, seed=0)
    texts = [generate(model, b"\0", 40, context=SPEC.context, seed=seed) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert 0 not in texts[0]


def test_a_text_is_as_long_as_asked_for_unless_the_model_ends_it() -> None:
    assert generate(always(ord("a")), b"\0", 20, context=SPEC.context) == b"a" * 20
    assert generate(always(0), b"\0", 20, context=SPEC.context) == b""
