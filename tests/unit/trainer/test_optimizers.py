"""The inner optimizers: who steps what, and a successor that goes on to the bit."""

from __future__ import annotations

import pytest
import torch

from shoal.node.manifest.manifest import ModelSpec
from shoal.node.training.models.decoder import build
from shoal.node.training.trainer.optimizers import can_be_recorded, make_optimizers
from shoal.protocol.base.errors import LocalError
from tests.unit.trainer.trainer_kit import MODEL, manifest, stored, trainer, weights

CPU = torch.device("cpu")


@pytest.mark.parametrize("tied", [True, False])
def test_muon_steps_the_layers_matrices_and_adamw_all_else(tied: bool) -> None:
    model = build(ModelSpec(**MODEL.model_dump() | {"tied": tied}), 0)
    adam, muon = make_optimizers(model, manifest(optimizer="muon").method, CPU)
    names = {weight: name for name, weight in model.named_parameters()}
    mine = {names[weight] for group in muon.param_groups for weight in group["params"]}
    rest = {names[weight] for group in adam.param_groups for weight in group["params"]}
    assert mine == {name for name in names.values() if name.endswith("_proj.weight")}
    assert rest == set(names.values()) - mine
    assert {"model.embed_tokens.weight", "model.norm.weight"} <= rest
    assert ("lm_head.weight" in rest) is not tied


def test_an_update_by_muon_is_as_long_as_adamws() -> None:
    """Its scale is that of arXiv 2502.16982: a root-mean-square of 0.2 times the rate, for any shape."""
    one = trainer(optimizer="muon", weight_decay=0.0, warmup_steps=0)
    before = {name: weight.detach().clone() for name, weight in one.model.named_parameters()}
    one.train(1, [0], lambda _: False)
    name = "model.layers.0.mlp.gate_proj.weight"  # (24, 16), of full rank
    moved = (one.model.get_parameter(name).detach() - before[name]).square().mean().sqrt().item()
    assert moved == pytest.approx(0.2 * 1e-2, rel=0.3)  # the iteration leaves singular values of 0.7 to 1.2


def test_muon_learns() -> None:
    one = trainer(optimizer="muon")
    losses = [one.train(round, [0]).loss for round in range(1, 16)]
    assert losses[-1] < 0.6 * losses[0]


def test_who_goes_on_with_muons_state_goes_on_to_the_bit() -> None:
    first, second, forgetful = (trainer(optimizer="muon") for _ in range(3))
    first.train(1, [0])
    vector, theta = stored(first), weights(first)
    assert vector[0] == 4
    assert vector.isfinite().all()
    second.restore(vector)
    for each in (first, second, forgetful):
        each.load(theta)
        each.train(2, [3])
    assert torch.equal(weights(first), weights(second))
    assert torch.equal(stored(first), stored(second))
    assert not torch.equal(weights(first), weights(forgetful))


def test_momentum_has_the_place_of_the_first_moments() -> None:
    one = trainer(optimizer="muon")
    one.train(1, [0])
    first, second = stored(one)[1:].chunk(2)
    name = "model.layers.1.self_attn.q_proj.weight"
    momentum = one.optimizers[1].state[one.model.get_parameter(name)]["momentum_buffer"]
    assert momentum.any()
    assert torch.equal(one.layout.views(first)[name], momentum)
    assert not one.layout.views(second)[name].any()
    assert one.layout.views(second)["model.norm.weight"].any()


def test_nothing_trained_is_nothing_to_restore() -> None:
    fresh = trainer(optimizer="muon")
    assert stored(fresh)[0] == 0
    fresh.restore(stored(fresh))
    assert not any(each.state for each in fresh.optimizers)


def test_a_step_by_muon_is_never_recorded() -> None:
    model = build(MODEL, 0)
    assert not can_be_recorded(make_optimizers(model, manifest(optimizer="muon").method, CPU))


def test_a_torch_without_muon_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(LocalError, match=r"trains with Muon, which torch .* lacks: upgrade it to 2\.9"):
        make_optimizers(build(MODEL, 0), manifest(optimizer="muon").method, CPU)
