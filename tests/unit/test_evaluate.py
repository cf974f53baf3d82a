"""The validation loss counts every byte once, and texts are drawn reproducibly for a seed."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from shoal.node.manifest.manifest import ModelSpec
from shoal.node.training.models.decoder import Llama, build
from shoal.node.training.trainer.evaluate import generate, validation_loss, windows
from shoal.protocol.base.errors import LocalError

MODEL = build(ModelSpec(dim=16, layers=1, heads=2, kv_heads=1, hidden=24, context=8), seed=0)


def text(size: int) -> torch.Tensor:
    return torch.randint(0, 256, (size,), generator=torch.Generator().manual_seed(1)).to(torch.uint8)


@pytest.mark.parametrize("size", [2, 8, 9, 10, 17, 50, 5001])
def test_is_the_mean_over_all_bytes_but_the_first(size: int) -> None:
    data = text(size)
    total = 0.0
    with torch.no_grad():
        for start in range(0, size - 1, 8):
            window = data[start : start + 9].long()[None]
            total += MODEL.loss(window).item() * (window.shape[1] - 1)
    assert validation_loss(MODEL, data, context=8).loss == pytest.approx(total / (size - 1), rel=1e-5)


def test_is_deterministic_and_leaves_no_gradients() -> None:
    assert validation_loss(MODEL, text(300), 8) == validation_loss(MODEL, text(300), 8)
    assert all(weight.grad is None for weight in MODEL.parameters())


def starts(size: int, context: int, at_most: int | None) -> list[int]:
    """Where the measured windows of a text begin."""
    batches = windows(torch.arange(size), context, at_most)
    return [int(row[0]) for batch in batches for row in batch]


def test_a_sample_is_spread_evenly_and_always_the_same() -> None:
    chosen = starts(10_001, 8, at_most=805)
    assert len(chosen) == 100, "windows that come to no more than was asked for"
    assert chosen == starts(10_001, 8, at_most=805)
    assert chosen[0] == 0
    assert chosen[-1] >= 10_000 - 2 * 100
    gaps = {after - before for before, after in pairwise(chosen)}
    assert gaps <= {96, 104}, "as far apart as whole windows allow"


def test_a_sample_of_a_shorter_text_is_all_of_it() -> None:
    data = text(300)
    assert validation_loss(MODEL, data, 8, at_most=299) == validation_loss(MODEL, data, 8)
    assert validation_loss(MODEL, data, 8, at_most=299).tokens == 299
    assert starts(20, 64, at_most=10) == [0], "one window at least"


def test_a_sample_is_the_mean_over_its_windows() -> None:
    data = text(5001)
    chosen = starts(5001, 8, at_most=100)
    with torch.no_grad():
        losses = [MODEL.loss(data[start : start + 9].long()[None]).item() for start in chosen]
    found = validation_loss(MODEL, data, 8, at_most=100)
    assert found.tokens == 96
    assert found.loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_its_progress_is_told_as_a_share() -> None:
    told: list[float] = []
    validation_loss(MODEL, text(5001), 8, tell=told.append)
    assert told == sorted(told)
    assert told[0] == 0
    assert 0.5 < told[-2] < told[-1] == 1


def test_nothing_to_predict_is_a_clear_error() -> None:
    with pytest.raises(LocalError):
        validation_loss(MODEL, text(1), 8)


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
