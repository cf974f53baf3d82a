"""The smallest optimizers that keep weights in their state in each of the known ways, and some that do not."""

from __future__ import annotations

import copy
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

Parameters = Any


class EachWeight(Optimizer):
    """An optimizer that steps each weight by `update`."""

    def __init__(self, params: Parameters, lr: float = 0.1, **defaults: Any) -> None:
        super().__init__(params, {"lr": lr, **defaults})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                assert p.grad is not None
                self.update(p, p.grad, self.state[p], group)

    def update(self, p: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        raise NotImplementedError


class ScheduleFreeSGD(Optimizer):
    """As schedulefree.SGDScheduleFree: the module holds y, the state z; after `eval()` the module holds x."""

    def __init__(self, params: Parameters, lr: float = 0.1, momentum: float = 0.9, first: int = 1) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "k": first - 1, "train_mode": False})

    def _turn(self, is_training: bool) -> None:
        for group in self.param_groups:
            if group["train_mode"] == is_training:
                continue
            group["train_mode"] = is_training
            weight = 1 - group["momentum"] if is_training else 1 - 1 / group["momentum"]
            for p in group["params"]:
                if "z" in self.state[p]:
                    p.data.lerp_(self.state[p]["z"], weight=weight)

    def eval(self) -> None:
        self._turn(False)

    def train(self) -> None:
        self._turn(True)

    def direction(self, p: Tensor, group: dict[str, Any]) -> Tensor:
        assert p.grad is not None
        return p.grad

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            if not group["train_mode"]:
                raise RuntimeError("call .train() before")
            group["k"] += 1
            for p in group["params"]:
                state, share = self.state[p], 1 / group["k"]
                if "z" not in state:
                    state["z"] = torch.clone(p)
                direction = self.direction(p, group)
                p.lerp_(state["z"], share)
                p.add_(direction, alpha=group["lr"] * (group["momentum"] * (1 - share) - 1))
                state["z"].sub_(direction, alpha=group["lr"])


class ScheduleFreeAdamW(ScheduleFreeSGD):
    """As schedulefree.AdamWScheduleFree."""

    def direction(self, p: Tensor, group: dict[str, Any]) -> Tensor:
        state = self.state[p]
        square = state.setdefault("exp_avg_sq", torch.zeros_like(p))
        assert p.grad is not None
        square.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
        return p.grad / ((square / (1 - 0.999 ** group["k"])).sqrt() + 1e-8)


class Lookahead(Optimizer):
    """Lookahead as it is often copied: it wraps an optimizer, without Optimizer.__init__; slow weights come later."""

    def __init__(self, optimizer: Optimizer, k: int = 2, alpha: float = 0.5) -> None:
        self.optimizer, self.k, self.alpha, self.count = optimizer, k, alpha, 0
        self.param_groups, self.defaults = optimizer.param_groups, optimizer.defaults
        self.state = defaultdict(dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.optimizer.step()
        self.count += 1
        for group in self.param_groups:
            for p in group["params"]:
                slow = self.state[p].setdefault("slow", p.detach().clone())
                if self.count % self.k == 0:
                    slow += (p - slow) * self.alpha
                    p.copy_(slow)


class EarlyLookahead(Optimizer):
    """Lookahead with slow weights from the start, in a list of lists."""

    def __init__(self, optimizer: Optimizer, k: int = 3, alpha: float = 0.5) -> None:
        super().__init__(optimizer.param_groups, {})
        self.optimizer, self.k, self.alpha, self.count = optimizer, k, alpha, 0
        self.slow = [[p.detach().clone() for p in group["params"]] for group in self.param_groups]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.optimizer.step()
        self.count += 1
        if self.count % self.k == 0:
            for group, copies in zip(self.param_groups, self.slow, strict=True):
                for p, slow in zip(group["params"], copies, strict=True):
                    slow += (p - slow) * self.alpha
                    p.copy_(slow)


class Masters(EachWeight):
    """Steps copies of the weights in another precision, and writes them over the module's."""

    def update(self, p: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        master = state.setdefault("master", p.detach().double())
        master.sub_(grad, alpha=group["lr"])
        p.copy_(master)


class Averaging(EachWeight):
    """SGD with an average of the weights, and another one that begins after some steps, as SWA's."""

    count = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.count += 1
        super().step(closure)

    def update(self, p: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        p.sub_(grad, alpha=group["lr"])
        state.setdefault("ema", p.detach().clone()).lerp_(p, 0.1)
        if self.count >= 4:
            state.setdefault("swa", p.detach().clone()).lerp_(p, 1 / (self.count - 3))


class Prodigal(Optimizer):
    """As Prodigy: step sizes follow from the distance to the first weights, of which each `every`-th number is kept."""

    def __init__(self, params: Parameters, every: int = 1) -> None:
        super().__init__(params, {"every": every, "d": 1e-2, "sum": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            every, along, size = group["every"], 0.0, 0.0
            for p in group["params"]:
                state = self.state[p]
                assert p.grad is not None
                if "p0" not in state:
                    flat = p.flatten()[::every].detach().clone()
                    state["p0"] = flat if p.any() else torch.tensor(0.0)
                    state["s"] = torch.zeros_like(p.flatten()[::every])
                grad = p.grad.flatten()[::every]
                along += float((grad * (state["p0"] - p.flatten()[::every])).sum())
                state["s"].add_(grad, alpha=group["d"])
                size += float(state["s"].abs().sum())
            group["d"] = max(group["d"], along / (size + 1e-12))
            for p in group["params"]:
                assert p.grad is not None
                p.sub_(p.grad, alpha=group["d"])


class AdaptingSGD(EachWeight):
    """As D-Adaptation's SGD: x0, the sum s of gradients, z = x0 - s, and weights that follow z slowly."""

    def __init__(self, params: Parameters, lr: float = 0.1, momentum: float = 0.9) -> None:
        super().__init__(params, lr, momentum=momentum)

    def update(self, p: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if not state:
            state["x0"], state["z"], state["s"] = p.detach().clone(), p.detach().clone(), torch.zeros_like(p)
        state["s"].add_(grad, alpha=group["lr"])
        state["z"].copy_(state["x0"] - state["s"])
        p.lerp_(state["z"], 1 - group["momentum"])


class Momentum(EachWeight):
    """State without any weights: a mean of gradients, the last step and the last gradient."""

    def update(self, p: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        mean = state.setdefault("mean", torch.zeros_like(p)).lerp_(grad, 0.1)
        last = state.setdefault("last_step", torch.zeros_like(p))
        before = state.setdefault("last_gradient", grad.clone())
        last.copy_(-group["lr"] * (mean + 0.1 * before) + 0.1 * last)
        p.add_(last)
        before.copy_(grad)


class FlatMasters(Optimizer):
    """Keeps all weights in one vector in another precision, padded to be a little longer."""

    def __init__(self, params: Parameters, lr: float = 0.1, padding: int = 3) -> None:
        super().__init__(params, {"lr": lr})
        self.params = [p for group in self.param_groups for p in group["params"]]
        self.flat = torch.nn.functional.pad(
            torch.cat([p.detach().flatten() for p in self.params]), (0, padding)
        ).double()
        self.views = list(self.flat[: self.flat.numel() - padding].split([p.numel() for p in self.params]))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p, view in zip(self.params, self.views, strict=True):
            assert p.grad is not None
            view.sub_(p.grad.flatten(), alpha=self.param_groups[0]["lr"])
            p.copy_(view.view_as(p))


class ReshapedMasters(Optimizer):
    """Keeps copies of the weights as matrices, or as rows."""

    def __init__(self, params: Parameters, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            assert p.grad is not None
            begin = p.detach().double().reshape(p.shape[0] if p.dim() > 1 else 1, -1).t().contiguous().t()
            master = self.state[p].setdefault("master", begin)
            master.sub_(p.grad.reshape(master.shape), alpha=self.param_groups[0]["lr"])
            p.copy_(master.reshape(p.shape))


class Slow:
    """An object in which a Lookahead may keep its slow weights."""

    __slots__ = ("weights",)

    def __init__(self) -> None:
        self.weights: list[Tensor] = []


class PlainLookahead:
    """A Lookahead that is no torch Optimizer; its slow weights are in an object, or in a module."""

    def __init__(self, optimizer: Optimizer, k: int = 2, alpha: float = 0.5, *, is_module: bool = False) -> None:
        self.optimizer, self.k, self.alpha, self.count = optimizer, k, alpha, 0
        self.slow = Slow()
        if is_module:
            self.module = torch.nn.Module()
            self.module.kept = torch.nn.ParameterList()
        self.is_module = is_module

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:
        return self.optimizer.state

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.optimizer.step()
        self.count += 1
        params = [p for group in self.param_groups for p in group["params"]]
        kept: Any = self.module.kept if self.is_module else self.slow.weights
        if not len(kept):
            kept.extend([p.detach().clone() for p in params])
        if self.count % self.k == 0:
            for p, slow in zip(params, kept, strict=True):
                slow += (p - slow) * self.alpha
                p.copy_(slow)


class ScheduleFreeWrapper:
    """As schedulefree.ScheduleFreeWrapper: any optimizer makes the steps of z, which is in that one's state."""

    def __init__(self, base: Optimizer, momentum: float = 0.9) -> None:
        self.base, self.momentum, self.train_mode, self.count = base, momentum, False, 0

    @property
    def param_groups(self) -> Any:
        return self.base.param_groups

    @property
    def state(self) -> Any:
        return self.base.state

    def _turn(self, is_training: bool, weight: float) -> None:
        if self.train_mode == is_training:
            return
        self.train_mode = is_training
        for p in self.param_groups[0]["params"]:
            if "z" in self.state[p]:
                p.data.lerp_(self.state[p]["z"], weight)

    def zero_grad(self) -> None:
        self.base.zero_grad()

    def eval(self) -> None:
        self._turn(False, 1 - 1 / self.momentum)

    def train(self) -> None:
        self._turn(True, 1 - self.momentum)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        assert self.train_mode
        self.count += 1
        params = self.param_groups[0]["params"]
        for p in params:
            z = self.state[p].setdefault("z", p.detach().clone())
            x = p.lerp(z, 1 - 1 / self.momentum)
            p.copy_(z)
            z.copy_(x)  # the two change places while the other steps
        self.base.step()
        for p in params:
            x, z = self.state[p]["z"].clone(), p.clone()
            self.state[p]["z"].copy_(z)
            p.copy_(x.lerp_(z, 1 / self.count).lerp_(z, 1 - self.momentum))


class Ema(Optimizer):
    """SGD with an average of the whole module, which it takes over now and then."""

    def __init__(self, module: torch.nn.Module, lr: float = 0.1) -> None:
        super().__init__(module.parameters(), {"lr": lr})
        self.count, self.module, self.ema = 0, module, copy.deepcopy(module)
        self.shadow = {name: p.detach().clone() for name, p in module.named_parameters()}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.count += 1
        for (name, p), ema in zip(self.module.named_parameters(), self.ema.parameters(), strict=True):
            assert p.grad is not None
            p.sub_(p.grad, alpha=self.param_groups[0]["lr"])
            ema.lerp_(p, 0.3)
            self.shadow[name].lerp_(p, 0.2)
            if self.count % 2 == 0:
                p.copy_((ema + self.shadow[name]) / 2)


class ZeroAverage(Optimizer):
    """As SPlus: `eval()` shows an average that starts at zero, corrected for that; so it needs a step first."""

    def __init__(self, params: Parameters, lr: float = 0.1, rate: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "train_mode": True})
        self.rate, self.count = rate, 0

    def eval(self) -> None:
        for group in self.param_groups:
            for p in group["params"] if group["train_mode"] else ():
                state = self.state[p]
                state["shown"] = p.detach().clone()
                p.data.copy_(state["ema"] / (1 - self.rate**self.count))
            group["train_mode"] = False

    def train(self) -> None:
        for group in self.param_groups:
            for p in group["params"] if not group["train_mode"] else ():
                if "shown" in self.state[p]:
                    p.data.copy_(self.state[p].pop("shown"))
            group["train_mode"] = True

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.count += 1
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                assert p.grad is not None
                if not state:
                    state["ema"], state["mean"] = torch.zeros_like(p), torch.zeros_like(p)
                state["mean"].lerp_(p.grad, 0.5)
                p.sub_(state["mean"], alpha=group["lr"])
                state["ema"].lerp_(p, 1 - self.rate)


class Latest(Optimizer):
    """As LAWA: SGD that takes over the mean of its last weights now and then."""

    def __init__(self, params: Parameters, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})
        self.count, self.last = 0, deque[list[Tensor]](maxlen=3)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        params = self.param_groups[0]["params"]
        for p in params:
            p.sub_(p.grad, alpha=self.param_groups[0]["lr"])
        self.last.append([p.clone() for p in params])
        self.count += 1
        if self.count % 4 == 0:
            for place, p in enumerate(params):
                p.copy_(torch.stack([each[place] for each in self.last]).mean(0))


class Hidden(Optimizer):
    """Keeps copies of the weights where no code of Shoal looks for them."""

    def __init__(self, params: Parameters, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})
        masters = [p.detach().clone() for p in self.param_groups[0]["params"]]
        self.masters = lambda: masters

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p, master in zip(self.param_groups[0]["params"], self.masters(), strict=True):
            assert p.grad is not None
            master.sub_(p.grad, alpha=self.param_groups[0]["lr"])
            p.copy_(master)


SGD = torch.optim.SGD
KINDS: dict[str, Callable[[Parameters], Any]] = {
    "schedule-free SGD": ScheduleFreeSGD,
    "schedule-free SGD that begins late": lambda params: ScheduleFreeSGD(params, first=2),
    "schedule-free AdamW": ScheduleFreeAdamW,
    "lookahead": lambda params: Lookahead(torch.optim.AdamW(params, lr=0.1, weight_decay=0.0)),
    "lookahead from the start": lambda params: EarlyLookahead(SGD(params, lr=0.05, momentum=0.9)),
    "lookahead around masters": lambda params: Lookahead(Masters(params)),
    "masters": Masters,
    "masters in a row": FlatMasters,
    "masters of other shapes": ReshapedMasters,
    "lookahead of no class of torch's": lambda params: PlainLookahead(SGD(params, lr=0.1)),
    "lookahead with a module": lambda params: PlainLookahead(SGD(params, lr=0.1), is_module=True),
    "schedule-free around another": lambda params: ScheduleFreeWrapper(SGD(params, lr=0.1, momentum=0.9)),
    "the latest weights": Latest,
    "an average from zeros": ZeroAverage,
    "averages": Averaging,
    "prodigy": Prodigal,
    "prodigy of slices": lambda params: Prodigal(params, every=3),
    "D-adaptation": AdaptingSGD,
    "momentum": Momentum,
    "Adadelta": torch.optim.Adadelta,
    "Adafactor": lambda params: torch.optim.Adafactor(params, weight_decay=0.0, eps=(None, 1e3)),
    "Adagrad": torch.optim.Adagrad,
    "Adam": lambda params: torch.optim.Adam(params, lr=0.1, amsgrad=True),
    "Adamax": torch.optim.Adamax,
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.1, weight_decay=0.0),
    "ASGD": lambda params: torch.optim.ASGD(params, lr=0.1, lambd=0.0, t0=3),
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "RMSprop": lambda params: torch.optim.RMSprop(params, momentum=0.9),
    "Rprop": torch.optim.Rprop,
    "SGD": lambda params: SGD(params, lr=0.1, momentum=0.9),
}
