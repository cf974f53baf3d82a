"""Weights in an optimizer's state follow when the module's are replaced, and nothing else does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from kit.run_at_hand import RunAtHand
from torch import Tensor, nn

from shoal.node.client.script import state_weights
from shoal.node.client.script.hooks import after_each_step
from shoal.node.client.script.module import OwnModule
from shoal.protocol.base.errors import LocalError
from tests.unit.script.own_weights_kit import (
    KINDS,
    SGD,
    Ema,
    Hidden,
    Lookahead,
    PlainLookahead,
    Prodigal,
    ScheduleFreeSGD,
)

STEPS, ROUNDS = 3, 4


class Net(nn.Module):
    """Two matrices alike, a bias of zeros, as layers begin with, a number and a constant, as norms have."""

    def __init__(self, *, is_even: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        shapes = {"first": (3, 4), "second": (3, 4), "last": (5,)}
        for name, shape in shapes.items():
            begin = torch.full(shape, 5.0) if is_even else torch.randn(shape, generator=generator)
            self.register_parameter(name, nn.Parameter(begin))
        self.bias = nn.Parameter(torch.zeros(7))
        self.scale, self.gain = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.ones(3))


class Trained:
    """A net whose gradients are the same wherever its weights are, so that training is the same elsewhere."""

    def __init__(self, kind: str, *, is_even: bool = False) -> None:
        self.net = Net(is_even=is_even)
        make = KINDS.get(kind)
        self.optimizer = make(list(self.net.parameters())) if make else Ema(self.net)
        self.own = OwnModule(self.net, self.optimizer)
        after_each_step(self.optimizer, self.own.stepped)
        self.is_even = is_even
        self.generator = torch.Generator().manual_seed(2)

    def step(self) -> None:
        if hasattr(self.optimizer, "train"):
            self.optimizer.train()
        for weight in self.net.parameters():
            noise = torch.randn(weight.shape, generator=self.generator)
            weight.grad = torch.ones_like(weight) if self.is_even else 1.0 + 0.5 * noise
        self.optimizer.step()

    def shown(self) -> Tensor:
        """The weights that are shown, as at the end of the docs' loop."""
        if hasattr(self.optimizer, "eval"):
            self.optimizer.eval()
        return torch.cat([weight.detach().flatten() for weight in self.net.parameters()])


def train(kind: str, shift: Tensor | None, *, is_even: bool, steps: int) -> Tensor:
    """Some rounds; after each the weights are replaced by those that are `shift` from them, or by themselves."""
    trained = Trained(kind, is_even=is_even)
    trained.own.load(trained.own.read())
    for _ in range(ROUNDS):
        for _ in range(steps):
            trained.step()
        here = trained.own.read()
        trained.own.load(here if shift is None else here + shift)
    return trained.shown()


@pytest.mark.parametrize("steps", [1, STEPS])
@pytest.mark.parametrize("is_even", [False, True])
@pytest.mark.parametrize("kind", [*KINDS, "a copy of the module"])
def test_training_goes_on_elsewhere_as_it_would_have(kind: str, is_even: bool, steps: int) -> None:
    """The moved run ends as far from the other as its weights were moved, and so do all copies of them."""
    size = sum(weight.numel() for weight in Net().parameters())
    shift = torch.randn(size, generator=torch.Generator().manual_seed(3))
    here = train(kind, None, is_even=is_even, steps=steps)
    there = train(kind, shift, is_even=is_even, steps=steps)
    torch.testing.assert_close(there, here + ROUNDS * shift, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_a_script_brings_goes_along_as_well(kind: str) -> None:
    """As after load_state_dict, or in another part of the same script."""
    ends = []
    for shift in (0.0, 1.0):
        trained = Trained(kind)
        trained.own.load(trained.own.read())
        for _ in range(5):
            trained.step()
        trained.own.load(trained.own.read())
        state_weights._learned.clear()  # as if it came from a file
        trained.own = OwnModule(trained.net, trained.optimizer)
        trained.own.load(trained.own.read() + shift)
        for _ in range(4):
            trained.step()
        ends.append(trained.shown() - shift)
    torch.testing.assert_close(*ends, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_runs_result_is_in_the_module_to_the_bit_whatever_is_shown(kind: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = KINDS[kind](list(net.parameters()))
    run = RunAtHand("", {"name": "a", "method": {"inner_steps": STEPS, "batch": 2}, "rounds": {"last": ROUNDS}})
    assert run.wrap(optimizer, net) is optimizer
    assert run.loop is not None
    while not run.is_over:
        if hasattr(optimizer, "train"):
            optimizer.train()
        optimizer.zero_grad()
        net(torch.randn(8, 3)).square().mean().backward()
        optimizer.step()
    assert run.loop.rounds == ROUNDS
    for _ in range(2):  # in the mode that it was left in, and in that in which models are used
        result = torch.cat([each.detach().flatten() for each in net.parameters()])
        if kind == "an average from zeros":  # which is rounded when it is shown
            torch.testing.assert_close(result, run.loop.theta, rtol=1e-6, atol=0)
        else:
            assert torch.equal(result, run.loop.theta)
        if hasattr(optimizer, "eval"):
            optimizer.eval()
    run.close()


def test_weights_that_are_kept_to_the_bit_are_found_however_small_they_are() -> None:
    """Smaller than a step, so that a line from them to where it led says nothing."""
    ends = []
    for shift in (0.0, 1.0):
        torch.manual_seed(0)
        weight = nn.Parameter(1e-4 * torch.randn(9))
        module = nn.Module()
        module.register_parameter("weight", weight)
        optimizer = Prodigal([weight])
        own = OwnModule(module, optimizer)
        own.load(own.read())
        for step in range(6):
            weight.grad = torch.ones(9)
            optimizer.step()
            own.stepped()
            if step == 2:
                own.load(own.read() + shift)
        ends.append(own.read() - shift)
    torch.testing.assert_close(*ends, rtol=1e-4, atol=2e-4)


def test_an_optimizer_that_takes_back_what_came_of_a_round_is_refused_in_words() -> None:
    """It keeps weights where they cannot be found."""
    torch.manual_seed(0)
    net = Net()
    optimizer = Hidden(net.parameters())
    own = OwnModule(net, optimizer)

    def train() -> None:
        for _ in range(3):
            own.load(own.read() + torch.randn(own.layout.size))
            for _ in range(STEPS):
                for weight in net.parameters():
                    weight.grad = torch.randn(weight.shape)
                optimizer.step()
                own.stepped()

    with pytest.raises(LocalError, match="this Hidden has taken the weights back to where they were before"):
        train()


def test_what_the_module_itself_has_is_not_the_optimizers() -> None:
    """Also where that knows the module: frozen parameters and buffers stay, whatever they are like."""
    torch.manual_seed(0)
    net = nn.BatchNorm1d(4)
    net.frozen = nn.Parameter(net.weight.detach().clone(), requires_grad=False)
    net.buffer = nn.Buffer(net.weight.detach().clone())
    optimizer: Any = Lookahead(SGD([net.weight, net.bias], lr=0.01))
    optimizer.model, optimizer.names = nn.ModuleList([net]), dict(net.named_parameters())
    optimizer.frozen, optimizer.buffer = net.frozen, net.buffer
    own = OwnModule(net, optimizer)
    own.load(own.read())
    for weight in own._weights:
        weight.grad = torch.ones(4)
    optimizer.step()
    own.stepped()
    own.load(own.read() + 1)
    for each in (net.frozen, net.buffer, net.running_var):
        assert each is not None
        assert each.tolist() == [1.0] * 4


def test_what_is_handed_in_is_what_is_shown() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = ScheduleFreeSGD([weight], lr=0.5)
    optimizer.train()
    module = nn.Module()
    module.register_parameter("weight", weight)
    own = OwnModule(module, optimizer)
    for _ in range(3):
        weight.grad = torch.ones(2)
        optimizer.step()
    inside = weight.detach().clone()
    handed_in = own.read()
    torch.testing.assert_close(weight.detach(), inside)
    assert optimizer.param_groups[0]["train_mode"]
    optimizer.eval()
    assert torch.equal(handed_in, weight.detach())
    assert not torch.allclose(handed_in, inside)
    own.load(torch.zeros(2))
    assert not optimizer.param_groups[0]["train_mode"], "it is left as it was found"


class Showing(SGD):
    """As SPlus: its `eval()` needs the state that the first step makes."""

    is_broken = False

    def eval(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.data.mul_(2)
                self.state[p]["shown"] = p.detach().clone()
                if self.is_broken or "ema" not in self.state[p]:
                    raise KeyError("ema")

    def train(self) -> None:
        for p in self.param_groups[0]["params"]:
            p.data.div_(2)


def test_before_the_first_step_an_eval_that_fails_shows_what_there_is() -> None:
    module = nn.Linear(2, 2)
    optimizer = Showing(module.parameters(), lr=0.1)
    own = OwnModule(module, optimizer)
    before = torch.cat([each.detach().flatten() for each in module.parameters()])
    assert torch.equal(own.read(), before)
    own.load(before + 1)
    assert torch.equal(own.read(), before + 1)
    assert not optimizer.state
    for p in module.parameters():
        optimizer.state[p]["ema"] = torch.ones(1)
    optimizer.is_broken = True
    with pytest.raises(LocalError, match=r"the eval\(\) of this Showing fails.*KeyError: 'ema'"):
        own.read()
    assert torch.equal(torch.cat([each.detach().flatten() for each in module.parameters()]), before + 1)


def test_a_zero_in_the_place_of_many_that_cannot_be_replaced_stays() -> None:
    module, one, other = nn.Module(), nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(3))
    module.register_parameter("one", one)
    module.register_parameter("other", other)
    optimizer = Lookahead(SGD(list(module.parameters()), lr=0.1))  # any that is none of torch's
    optimizer.state[one]["begin"] = (torch.ones(2),)
    optimizer.state[other]["begin"] = (torch.tensor(0.0),)
    own = OwnModule(module, optimizer)
    own.load(torch.full((5,), 2.0))
    assert own.read().tolist() == [2.0] * 5
    assert optimizer.state[other]["begin"] == (torch.tensor(0.0),)


class Sam(torch.optim.Optimizer):
    """Sharpness-aware: two steps of its own, which its `step` makes too."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})
        self.base = SGD(self.param_groups, lr=0.1)

    def first_step(self) -> None:
        for p in self.param_groups[0]["params"]:
            p.data.add_(0.01)

    def second_step(self) -> None:
        for p in self.param_groups[0]["params"]:
            p.data.sub_(0.01)
        self.base.step()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.first_step()
        self.second_step()


@pytest.mark.parametrize("is_plain", [False, True])
def test_an_optimizer_inside_that_is_stepped_by_itself_is_an_error_that_says_so(is_plain: bool) -> None:
    """It would train alone: what counts is the `step` of what was wrapped."""
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer: Any = PlainLookahead(SGD([weight], lr=0.1)) if is_plain else Sam([weight])
    seen: list[int] = []
    handle: Any = after_each_step(optimizer, lambda: seen.append(1))
    optimizer.step()
    assert seen == [1]
    alone = optimizer.optimizer.step if is_plain else optimizer.second_step
    with pytest.raises(LocalError, match=r"the SGD inside this \w+ was stepped without it.* call its step\(\)"):
        alone()
    optimizer.step()
    assert seen == [1, 1]
    before = weight.detach().clone()
    other = copy.deepcopy(optimizer)
    if is_plain:  # torch's own keep no attributes in a copy
        other.step()
    assert torch.equal(weight, before), "a copy is not in the run, and steps its own weights"
    assert seen == [1, 1]
    handle.remove()
    alone()


def test_steps_of_an_optimizer_that_torch_knows_no_hooks_of_are_seen_until_the_end() -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = Lookahead(SGD([weight], lr=0.1))
    assert not hasattr(optimizer, "_optimizer_step_post_hooks")
    seen: list[int] = []
    handle: Any = after_each_step(optimizer, lambda: seen.append(1))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.step()
    scheduler.step()
    assert len(seen) == 1
    handle.remove()
    optimizer.step()
    assert len(seen) == 1
