"""The networks for pictures: shapes, the same numbers for the same seed, and that they learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shoal.node.diffusion.network import PictureModel, Router, Velocity, build, skeleton
from shoal.node.diffusion.pictures import Pictures
from shoal.node.manifest.manifest import Manifest, parse_manifest
from shoal.node.manifest.model import FlowSpec, RouterSpec
from shoal.node.manifest.requirements import parameters, requirements
from shoal.node.training.models.layout import Layout
from shoal.node.training.models.registry import initial, layout_of
from shoal.node.training.trainer.evaluate import validation_loss
from shoal.protocol.base.errors import LocalError

FLOW = FlowSpec(name="flow", side=3, classes=4, width=16, layers=2, hidden=24)
ROUTER = RouterSpec(name="router", side=3, classes=4, width=16, layers=1, hidden=24, experts=2)
DIGITS = 'name = "p"\nseed = 5\n[model]\nname = "flow"\nwidth = 16\n[data]\nname = "digits"\n'


def halves(count: int = 40) -> Pictures:
    """Bright pictures of classes 0 and 1 in cluster 0, dark ones of 2 and 3 in cluster 1."""
    classes = np.arange(count) % 4
    bright = np.where(classes < 2, 0.9, -0.9)[:, None]
    pixels = (bright * np.ones((1, 9))).astype(np.float32)
    return Pictures(pixels, classes.astype(np.int64), (classes // 2).astype(np.int64), 4)


@pytest.mark.parametrize("spec", [FLOW, ROUTER])
def test_a_model_has_as_many_numbers_as_its_table_says(spec: FlowSpec | RouterSpec) -> None:
    assert Layout.of(skeleton(spec)).size == spec.parameters == parameters(spec)


def test_the_seed_gives_the_weights() -> None:
    one, same, other = (Layout.of(build(FLOW, seed)).read(build(FLOW, seed)) for seed in (3, 3, 4))
    assert one.equal(same)
    assert not one.equal(other)


def test_an_answer_has_the_shape_of_pictures_or_of_experts() -> None:
    x, t, classes = torch.randn(5, 9), torch.rand(5), torch.tensor([0, 1, 2, 3, 4])
    assert build(FLOW, 0)(x, t, classes).shape == (5, 9)
    assert build(ROUTER, 0)(x, t, classes).shape == (5, 2)


def trained(model: PictureModel, steps: int) -> tuple[float, float]:
    """The validation loss before and after."""
    pictures = halves()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    before = validation_loss(model, pictures.validation(), 9).loss
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 5e-3 * (1 - step / steps)
        optimizer.zero_grad()
        torch.autograd.backward(model.loss(pictures.batch(1, 0, 1, step, 64)))
        optimizer.step()
    return before, validation_loss(model, pictures.validation(), 9).loss


def test_a_velocity_learns_where_pictures_are() -> None:
    model = build(FLOW, 0)
    assert isinstance(model, Velocity)
    before, after = trained(model, 150)
    assert before > 1.5  # of noise with variance 1, and pictures near 1
    assert after < before / 3


def test_a_router_learns_the_clusters_and_knows_nothing_of_noise_alone() -> None:
    model = build(ROUTER, 0)
    assert isinstance(model, Router)
    before, after = trained(model, 150)
    assert before == pytest.approx(np.log(2), abs=1e-6)
    assert after < 0.1  # the class tells the cluster
    with torch.inference_mode():
        said = torch.softmax(model(torch.randn(200, 9), torch.ones(200), torch.full((200,), 4)), dim=-1)
    assert said.mean(0).tolist() == pytest.approx([0.5, 0.5], abs=0.25)  # as sure as chance, or nearly


def test_a_manifest_of_pictures_needs_data_of_pictures() -> None:
    manifest = parse_manifest(DIGITS)
    assert not manifest.lacks_weights
    assert Manifest.model_validate(manifest.model_dump()) == manifest
    first = initial(manifest)
    assert first is not None
    assert len(first) == layout_of(manifest.model).size
    assert requirements(manifest, 2).worker_memory > 4 * len(first)
    for wrong in (DIGITS.replace("digits", "stdlib"), DIGITS.replace('name = "flow"\nwidth = 16', "dim = 16")):
        with pytest.raises(LocalError, match=r"data\.name digits"):
            parse_manifest(wrong)
