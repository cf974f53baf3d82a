"""A scheduler that follows the run's progress: each of its steps takes it to where the run is."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable
from typing import Any

from shoal.protocol.base.errors import LocalError

log = logging.getLogger("shoal.script")


def follow(scheduler: Any, steps: Callable[[], int | None]) -> None:
    """Let `scheduler` follow `steps`, from now on, as long as that is a number; LocalError if it is no scheduler.

    One that follows a metric stays as it is, with a warning: it counts no steps, and each member has its own metrics.

    Its class becomes a subclass of the one that it has: a function among its attributes would be in `state_dict()`,
    which is pickled when training is saved. A copy, or what comes of pickling it whole, is of its own class.
    """
    kind: Any = getattr(type(scheduler), "_followed", type(scheduler))  # it may have followed before
    if not callable(getattr(kind, "step", None)):
        raise LocalError(f"a {kind.__name__} has no step(), so it is no scheduler that could follow the run")
    if not counts_steps(scheduler):
        log.warning(
            "a %s goes by this machine's own metrics: its rates are not those of the other members", kind.__name__
        )
        return
    counts = hasattr(scheduler, "last_epoch")
    if not counts:  # as a ChainedScheduler, whose parts do
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
        """What it is made of again where it was pickled or copied: its own class, which follows nothing."""
        made = kind.__reduce_ex__(self, min(protocol, 1))  # the newer ones insist on the class that it has now
        if not isinstance(made, tuple):
            return made
        return made[0], tuple(kind if each is type(self) else each for each in made[1]), *made[2:]

    names = {"step": step, "_followed": kind, "__module__": kind.__module__, "__reduce_ex__": reduced}
    scheduler.__class__ = type(kind.__name__, (kind,), names)
    with warnings.catch_warnings():  # that the optimizer has not made those steps
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        scheduler.step()


def counts_steps(scheduler: Any) -> bool:
    """Whether its step needs nothing; that of one that goes by a metric, as ReduceLROnPlateau, needs that."""
    given = inspect.signature(scheduler.step).parameters.values()
    return not any(each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD for each in given)
