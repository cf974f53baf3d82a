"""A scheduler that follows the run's progress: each of its steps takes it to where the run is."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from shoal.protocol.errors import LocalError


def follow(scheduler: Any, steps: Callable[[], int]) -> None:
    """Let `scheduler` follow `steps`, from now on; LocalError if it does not count steps.

    Its class becomes a subclass of the one that it has: a function among its attributes would be in `state_dict()`,
    which is pickled when training is saved.
    """
    kind = type(scheduler)
    if isinstance(scheduler, ReduceLROnPlateau) or not hasattr(scheduler, "last_epoch"):
        raise LocalError(
            f"a {kind.__name__} does not count the optimizer's steps, so it cannot follow the run: step it yourself"
        )

    def step(self: Any, *_: Any, **__: Any) -> None:
        while self.last_epoch < steps():
            kind.step(self)

    scheduler.__class__ = type(kind.__name__, (kind,), {"step": step, "__module__": kind.__module__})
    with warnings.catch_warnings():  # that the optimizer has not made those steps
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        scheduler.step()
