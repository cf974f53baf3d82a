"""Modules without numbers: names and shapes only, made without what torch imports to make numbers up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _WithoutInitialisation(TorchFunctionMode):
    """Functions of torch.nn.init leave their tensor as it is.

    On the meta device they would import torch's compiler, which takes seconds and a hundred megabytes.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return given["tensor"] if "tensor" in given else args[0]
        return func(*args, **given)


@contextmanager
def unfilled() -> Iterator[None]:
    """Modules that are built in this context have no numbers."""
    with torch.device("meta"), _WithoutInitialisation():
        yield
