"""The weights that an optimizer means to show, in the module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from shoal.protocol.base.errors import LocalError


@contextmanager
def shown(optimizer: torch.optim.Optimizer, weights: Sequence[Tensor]) -> Iterator[None]:
    """In the module are the weights that the optimizer means to show, as a schedule-free one does after `eval()`."""
    show, go_on = getattr(optimizer, "eval", None), getattr(optimizer, "train", None)
    if not (callable(show) and callable(go_on)):
        yield
        return
    with torch.no_grad():
        flags, before = _flags(optimizer), [weight.detach().clone() for weight in weights]
        has_begun = _has_begun(optimizer)
        try:
            show()
        except Exception as error:
            for weight, old in zip(weights, before, strict=True):
                weight.copy_(old)
            if has_begun:
                raise LocalError(
                    f"the eval() of this {type(optimizer).__name__} fails, by which it would show the weights that are "
                    f"handed in: {type(error).__name__}: {error}"
                ) from error
            if isinstance(optimizer.state, dict):
                optimizer.state.clear()  # of what it was about to note
            was_training = False  # before its first step it has nothing else to show
        else:
            was_training = flags != _flags(optimizer) or not all(map(torch.equal, before, weights))
        del before
    try:
        yield
    finally:
        if was_training:
            with torch.no_grad():
                go_on()


def _flags(optimizer: torch.optim.Optimizer) -> list[tuple[str, bool]]:
    tables: list[Mapping[str, Any]] = [vars(optimizer), *optimizer.param_groups]
    return [(key, value) for each in tables for key, value in each.items() if isinstance(value, bool)]


def _has_begun(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it has made a step, or was given a state."""
    state = getattr(optimizer, "state", None)
    return not isinstance(state, Mapping) or any(not isinstance(each, Mapping) or each for each in state.values())
