"""Validation predicts every byte but the first exactly once."""

from __future__ import annotations

import pytest
import torch

from shoal.node.spec.manifest import ModelSpec
from shoal.node.trainer.evaluate import validation_loss
from shoal.node.trainer.model import build
from shoal.protocol.errors import LocalError

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
    assert validation_loss(MODEL, data, context=8) == pytest.approx(total / (size - 1), rel=1e-5)


def test_is_deterministic_and_leaves_no_gradients() -> None:
    assert validation_loss(MODEL, text(300), 8) == validation_loss(MODEL, text(300), 8)
    assert all(weight.grad is None for weight in MODEL.parameters())


def test_nothing_to_predict_is_a_clear_error() -> None:
    with pytest.raises(LocalError):
        validation_loss(MODEL, text(1), 8)
