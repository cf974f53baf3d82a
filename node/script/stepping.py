"""To be called after each step of an optimizer, whoever made it."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any, Protocol

import torch


class Handle(Protocol):
    """By which it ends."""

    def remove(self) -> None: ...


def after_each_step(optimizer: torch.optim.Optimizer, call: Callable[[], None]) -> Handle:
    """Call `call` after each step, until the handle is removed."""
    if hasattr(optimizer, "_optimizer_step_post_hooks") and getattr(type(optimizer).step, "hooked", False):
        return optimizer.register_step_post_hook(lambda *_: call())
    return _Wrapped(optimizer, call)


class _Wrapped:
    """Around the `step` of one that never calls Optimizer.__init__, as some around others do: it has no hooks.

    Others may have put theirs around it when this ends, as schedulers do, so it stays, and does nothing.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call
        step = optimizer.step

        def stepped(_: torch.optim.Optimizer, *given: Any, **named: Any) -> Any:
            result = step(*given, **named)
            if self._call is not None:
                self._call()
            return result

        optimizer.step = MethodType(stepped, optimizer)  # type: ignore[method-assign]

    def remove(self) -> None:
        self._call = None
