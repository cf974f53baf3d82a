"""A hook after each step of an optimizer, whoever calls it.

If an optimizer has another inside, which steps the same weights, the outer one has to step it: a script that steps the
inner one alone, as by `first_step` and `second_step` of a sharpness-aware one, would train without the run, and gets an
error.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from types import MethodType
from typing import Any, Protocol

import torch

from shoal.protocol.base.errors import LocalError


class Handle(Protocol):
    """By which it ends."""

    def remove(self) -> None: ...


def after_each_step(optimizer: torch.optim.Optimizer, call: Callable[[], None]) -> Handle:
    """Call `call` after each step, until the handle is removed."""
    return _Steps(optimizer, call)


class _Steps:
    """Those of an optimizer, and of the ones inside it."""

    def __init__(self, optimizer: torch.optim.Optimizer, call: Callable[[], None]) -> None:
        self._name, self._call = type(optimizer).__name__, call
        self._is_within = False  # a step
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
                    f"training: call its step(), with a closure if it wants one (`{self._name}.step`)"
                )

        return check


def _inside(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """Those that it keeps, and that step its weights."""
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
    return [_Wrapped(optimizer, before, after)]


class _Wrapped:
    """Around the `step` of one that never calls Optimizer.__init__, as some around others do: it has no hooks.

    Others may have put theirs around it when this ends, as schedulers do, so it stays, and does nothing.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._around: tuple[Callable[[], None], Callable[[], None]] | None = (before, after)
        step: Any = optimizer.step
        of_any = step.__func__ if getattr(step, "__self__", None) is optimizer else None

        def stepped(which: torch.optim.Optimizer, *given: Any, **named: Any) -> Any:
            if which is not optimizer and of_any is not None:
                return of_any(which, *given, **named)  # a copy, which is nobody's part in a run
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
