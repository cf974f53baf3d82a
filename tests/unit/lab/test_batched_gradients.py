"""Many models in one pass do what model.py does with each of them."""

from __future__ import annotations

import pytest
import torch

from shoal.node.lab.virtual_workers import batched_gradients
from shoal.node.manifest.manifest import ModelSpec
from shoal.node.training.models.decoder import build
from shoal.node.training.models.layout import Layout

SHAPE = ModelSpec(dim=16, layers=2, heads=4, kv_heads=2, hidden=24, context=12)


@pytest.mark.parametrize("tied", [True, False])
def test_each_worker_has_the_gradient_of_its_own_model(tied: bool) -> None:
    spec = SHAPE.model_copy(update={"tied": tied})
    models = [build(spec, seed) for seed in range(3)]
    layout = Layout.of(models[0])
    tokens = torch.randint(256, (3, 2, 13), generator=torch.Generator().manual_seed(1))
    found, losses = batched_gradients(spec, layout, torch.stack([layout.read(model) for model in models]), tokens)
    for row, model in enumerate(models):
        loss = model.loss(tokens[row])
        parts = torch.autograd.grad(loss, list(model.parameters()))
        assert torch.allclose(found[row], torch.cat([part.flatten() for part in parts]), rtol=1e-4, atol=1e-7)
        assert losses[row].item() == pytest.approx(loss.item(), rel=1e-6)
    assert not torch.allclose(found[0], found[1], atol=1e-3)
