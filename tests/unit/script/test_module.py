"""A user's module and optimizer: what fits a run, and the sentences for what does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from shoal.node.client.script.founding import manifest_of
from shoal.node.client.script.module import OwnModule
from shoal.node.client.up.plan import to_toml
from shoal.node.ipc.vectors import moments_size
from shoal.node.manifest.manifest import Manifest, decode_manifest, parse_manifest
from shoal.node.manifest.model import CustomSpec
from shoal.node.manifest.requirements import requirements
from shoal.node.training.methods.method import PARAMETERS, Answer
from shoal.node.training.methods.registry import method_of
from shoal.node.training.models.layout import trained
from shoal.protocol.base.errors import LocalError


def net(width: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width), nn.Linear(width, 1))


def own(model: nn.Module, kind: Callable[..., torch.optim.Optimizer] = torch.optim.Adam) -> OwnModule:
    return OwnModule(model, kind([each for each in model.parameters() if each.requires_grad], lr=0.1))


def step(ours: OwnModule) -> None:
    ours.optimizer.zero_grad()
    ours.module(torch.ones(4, 2) * torch.arange(4)[:, None]).sum().backward()
    ours.optimizer.step()


def test_what_is_exchanged_are_trained_parameters_and_no_buffers() -> None:
    assert [place.name for place in own(net()).layout] == [
        *("0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias")
    ]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (net(4), r"0.weight has shape \(4, 2\), and \(3, 2\) in the run"),
        (nn.Sequential(nn.Linear(2, 3)), "only the run has 1.weight"),
        (nn.Linear(2, 3), "weight stands where the run has 0.weight"),
    ],
)
def test_another_module_is_refused_by_its_first_tensor_that_differs(other: nn.Module, words: str) -> None:
    spec = own(net()).spec()
    own(net()).check_fits(spec)
    with pytest.raises(LocalError, match=words):
        own(other).check_fits(spec)


def test_frozen_parameters_stay_and_must_be_the_same() -> None:
    frozen = net()
    frozen[0].requires_grad_(False)
    spec = own(frozen).spec()
    assert spec.frozen
    assert "0.weight" not in [place.name for place in own(frozen).layout]
    own(frozen).check_fits(spec)
    with torch.no_grad():
        next(frozen.parameters())[0, 0] += 1
    with pytest.raises(LocalError, match="frozen parameters"):
        own(frozen).check_fits(spec)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda model: torch.optim.SGD(model[0].parameters(), lr=0.1), "1.weight is in no group"),
        (lambda model: torch.optim.SGD(model.double().parameters(), lr=0.1), "keep the weights in fp32"),
        (lambda model: torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(1))], lr=0.1), "not the module's"),
    ],
)
def test_an_optimizer_of_something_else_is_refused(
    spoil: Callable[[nn.Module], torch.optim.Optimizer], words: str
) -> None:
    model = net()
    with pytest.raises(LocalError, match=words):
        OwnModule(model, spoil(model))


def test_what_is_no_optimizer_and_no_module_is_refused_in_words() -> None:
    module, optimizer = net(), torch.optim.SGD(net().parameters())
    pairs: list[Any] = [(optimizer, module), (module, None), (None, optimizer)]
    for module, optimizer in pairs:
        with pytest.raises(LocalError, match="`wrap` takes an optimizer and the module whose parameters it steps, not"):
            OwnModule(module, optimizer)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_adams_moments_outlive_the_script(kind: Callable[..., torch.optim.Optimizer]) -> None:
    ours = own(net(), kind)
    step(ours)
    kept = torch.zeros(moments_size(ours.layout.size))
    ours.store(kept)
    assert kept[0] == 1
    theirs = own(net(), kind)
    theirs.load(ours.read())
    theirs.restore(kept)
    for each in (ours, theirs):
        step(each)
    assert torch.equal(ours.read(), theirs.read())


def test_a_weight_that_had_no_gradient_yet_costs_no_other_its_moments() -> None:
    def forward(ours: OwnModule, *, is_whole: bool) -> None:
        assert isinstance(ours.module, nn.Sequential)
        ours.optimizer.zero_grad()
        first, _, last = ours.module.children()
        made = first(torch.ones(4, 2) * torch.arange(4)[:, None])
        (last(made) if is_whole else made).square().sum().backward()
        ours.optimizer.step()

    ours = own(net())
    kept = torch.ones(moments_size(ours.layout.size))
    for _ in range(3):
        forward(ours, is_whole=False)
    ours.store(kept)
    assert kept[0] == 3
    theirs = own(net())
    theirs.load(ours.read())
    theirs.restore(kept)
    for each in (ours, theirs):
        forward(each, is_whole=True)
        forward(each, is_whole=True)
    assert torch.equal(ours.read(), theirs.read())


def test_an_optimizer_that_brings_its_state_keeps_it() -> None:
    ours, theirs = own(net()), own(net())
    step(ours)
    kept = torch.zeros(moments_size(ours.layout.size))
    ours.store(kept)
    step(theirs)
    step(theirs)
    theirs.restore(kept)
    assert {float(state["step"]) for state in theirs.optimizer.state.values()} == {2.0}


def test_of_other_optimizers_nothing_is_kept() -> None:
    ours = own(net(), torch.optim.SGD)
    step(ours)
    kept = torch.zeros(moments_size(ours.layout.size))
    ours.store(kept)
    assert not kept.any()
    ours.restore(kept)


def test_a_manifest_holds_the_layout_and_reads_back_the_same() -> None:
    manifest = manifest_of(own(net()), {"name": "own", "method": {"batch": 4}})
    assert isinstance(manifest.model, CustomSpec)
    assert decode_manifest(manifest.canonical()) == manifest
    assert parse_manifest(to_toml(manifest)) == manifest
    assert manifest.model.parameters == own(net()).layout.size
    assert requirements(manifest, 2).state == 8 * manifest.model.parameters


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"name": "own", "method": {"name": "ddp"}}, "ddp steps by AdamW"),
        ({"name": "own", "method": {"name": "streaming-diloco", "strides": 4}}, "the model has 0 layers"),
        ({"name": "own", "method": {"steps": 4}}, "unknown key 'method.steps'"),
        ({"name": ""}, "name"),
    ],
)
def test_a_run_that_cannot_be_is_refused(tables: dict[str, object], words: str) -> None:
    with pytest.raises(LocalError, match=words):
        manifest_of(own(nn.Linear(2, 2)), tables)


def test_an_exchange_after_each_step_of_plain_sgd_is_data_parallel() -> None:
    """What docs/scripts.md offers in the place of ddp, which is refused."""
    method = {"name": "diloco", "inner_steps": 1, "outer_lr": 1.0, "outer_momentum": 0.0}
    members = [own(net(), torch.optim.SGD) for _ in range(2)]
    rule = method_of(manifest_of(members[0], {"name": "own", "method": method}), members[0].layout)
    start, gradients, contributions = members[0].read(), [], []
    agreed, private = rule.begin(start.clone())
    for number, each in enumerate(members, 1):
        each.optimizer.zero_grad()
        each.module(number * torch.ones(4, 2) * torch.arange(4)[:, None]).square().sum().backward()
        gradients.append(
            each.layout.pack({name: weight.grad for name, weight in trained(each.module) if weight.grad is not None})
        )
        each.optimizer.step()
        contributions.append(rule.contribute(0, each.read(), agreed, private).payload.clone())
    theta = rule.apply(0, agreed, Answer(torch.stack(contributions).mean(0), 2))[PARAMETERS]
    torch.testing.assert_close(theta, start - 0.1 * torch.stack(gradients).mean(0), rtol=1e-5, atol=1e-6)
    assert not torch.equal(*gradients)


def test_a_model_of_ones_own_comes_with_data_of_ones_own() -> None:
    manifest = manifest_of(own(net()), {"name": "own"})
    with pytest.raises(ValueError, match=r"data\.name own"):
        Manifest.model_validate(manifest.model_dump() | {"data": {"name": "stdlib"}})
    with pytest.raises(ValueError, match=r"data\.name own"):
        Manifest.model_validate({"name": "builtin", "data": {"name": "own"}})
