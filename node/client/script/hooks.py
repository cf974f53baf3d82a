"""What `wrap` and `follow` put around a script's optimizer and scheduler.

- `after_each_step`: a hook after each step of an optimizer, whoever calls it.
- `follow`: each step of a scheduler takes it to where the run is.

If an optimizer has another inside that steps the same weights, the outer one has to be stepped: a script that steps the
inner one alone, as by `first_step` and `second_step` of a sharpness-aware optimizer, would train without the run, and
gets an error.
"""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable
from itertools import chain
from types import MethodType
from typing import Any, Protocol

import torch

from shoal.protocol.base.errors import LocalError

log = logging.getLogger("shoal.script")

# -- after each step of an optimizer ----------------------------------------------------------------------


class Handle(Protocol):
    """Removes a hook, as torch's RemovableHandle does."""

    def remove(self) -> None: ...


def after_each_step(optimizer: torch.optim.Optimizer, call: Callable[[], None]) -> Handle:
    """Call `call` after each step, until the handle is removed."""
    return _Steps(optimizer, call)


class _Steps:
    """The hooks on an optimizer's steps, and on those of the optimizers inside it."""

    def __init__(self, optimizer: torch.optim.Optimizer, call: Callable[[], None]) -> None:
        self._name, self._call = type(optimizer).__name__, call
        self._is_within = False  # a step of the outer optimizer
        self._handles = _around_steps(optimizer, self._begin, self._end)
        for each in _inside(optimizer):
            self._handles += _around_steps(each, lambda: None, self._check_within(type(each).__name__))

    def remove(self) -> None:
        for each in self._handles:
            each.remove()

    def _begin(self) -> None:
        self._is_within = True

    def _end(self) -> None:
        self._is_within = False
        self._call()

    def _check_within(self, name: str) -> Callable[[], None]:
        def check() -> None:
            if not self._is_within:
                raise LocalError(
                    f"the {name} inside this {self._name} was stepped without it, so that the run sees nothing of "
                    f"training: call its step(), with a closure if it wants one (`{self._name}.step`)",
                    code="script-misused",
                )

        return check


def _inside(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """The optimizers among its attributes that step the same weights."""
    ours = _stepped(optimizer)
    kept = [each for each in vars(optimizer).values() if isinstance(each, torch.optim.Optimizer)]
    return [each for each in kept if each is not optimizer and not ours.isdisjoint(_stepped(each))]


def _stepped(optimizer: torch.optim.Optimizer) -> set[int]:
    return set(map(id, chain.from_iterable(group["params"] for group in optimizer.param_groups)))


def _around_steps(
    optimizer: torch.optim.Optimizer, before: Callable[[], None], after: Callable[[], None]
) -> list[Handle]:
    has_hooks = hasattr(optimizer, "_optimizer_step_pre_hooks") and hasattr(optimizer, "_optimizer_step_post_hooks")
    if has_hooks and getattr(getattr(type(optimizer), "step", None), "hooked", False):
        first = optimizer.register_step_pre_hook(lambda *_: before())
        return [first, optimizer.register_step_post_hook(lambda *_: after())]
    return [_WrappedStep(optimizer, before, after)]


class _WrappedStep:
    """Replaces the `step` of an optimizer without torch's hooks: one that never calls Optimizer.__init__.

    Once removed it stays in place and does nothing: others, such as schedulers, may have wrapped it meanwhile.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._around: tuple[Callable[[], None], Callable[[], None]] | None = (before, after)
        step: Any = optimizer.step
        unbound = step.__func__ if getattr(step, "__self__", None) is optimizer else None

        def stepped(which: torch.optim.Optimizer, *given: Any, **named: Any) -> Any:
            if which is not optimizer and unbound is not None:
                return unbound(which, *given, **named)  # a copy of the optimizer, which is in no run
            around = self._around
            if around is not None:
                around[0]()
            result = step(*given, **named)
            if around is not None and self._around is not None:
                around[1]()
            return result

        optimizer.step = MethodType(stepped, optimizer)  # type: ignore[method-assign]

    def remove(self) -> None:
        self._around = None


# -- a scheduler that follows the run --------------------------------------------------------------------


def follow(scheduler: Any, steps: Callable[[], int | None]) -> None:
    """Let each step of `scheduler` take it to `steps()`, the run's inner steps; an ordinary step while that is None.

    A scheduler that follows a metric stays as it is, with a warning: it counts no steps, and each member has its own
    metrics. LocalError if `scheduler` has no step().

    The object's class becomes a subclass of its own one, because a function among its attributes would be in
    `state_dict()`, which is pickled when training is saved. Copies and unpickled ones have the original class.
    """
    kind: Any = getattr(type(scheduler), "_followed", type(scheduler))  # the original class, if it follows already
    if not callable(getattr(kind, "step", None)):
        raise LocalError(
            f"a {kind.__name__} has no step(), so it is no scheduler that could follow the run", code="script-misused"
        )
    if not counts_steps(scheduler):
        log.warning(
            "a %s goes by this machine's own metrics: its rates are not those of the other members",
            kind.__name__,
            extra={"code": "rates-differ"},
        )
        return
    counts = hasattr(scheduler, "last_epoch")
    if not counts:  # a ChainedScheduler counts in its parts only
        scheduler.last_epoch = max((each.last_epoch for each in getattr(scheduler, "_schedulers", ())), default=0)

    def step(self: Any, *given: Any, **named: Any) -> None:
        wanted = steps()
        if wanted is None:
            kind.step(self, *given, **named)
            return
        while self.last_epoch < min(wanted, getattr(self, "total_steps", wanted)):  # OneCycleLR refuses to go beyond
            kind.step(self)
            self.last_epoch += not counts

    def reduced(self: Any, protocol: Any) -> Any:
        """For pickle and copy: the original class in place of this one."""
        made = kind.__reduce_ex__(self, min(protocol, 1))  # newer protocols insist on the object's present class
        if not isinstance(made, tuple):
            return made
        return made[0], tuple(kind if each is type(self) else each for each in made[1]), *made[2:]

    names = {"step": step, "_followed": kind, "__module__": kind.__module__, "__reduce_ex__": reduced}
    scheduler.__class__ = type(kind.__name__, (kind,), names)
    with warnings.catch_warnings():  # torch warns that the optimizer has not made those steps
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        scheduler.step()


def counts_steps(scheduler: Any) -> bool:
    """Whether its step() needs no argument; a scheduler that follows a metric (ReduceLROnPlateau) needs the metric."""
    given = inspect.signature(scheduler.step).parameters.values()
    return not any(each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD for each in given)
