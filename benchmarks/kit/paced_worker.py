"""The built-in worker with steps of a fixed length, as on a machine with an accelerator.

A step is made, and then waits until SHOAL_STEP seconds are over, so that several workers, their daemons and a simulated
network fit on a machine of few cores, and waiting for the network is measured, not contention for cores.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from shoal.node.training.trainer.inner import InnerTrainer
from shoal.node.worker import worker

STEP = float(os.environ["SHOAL_STEP"])
P = ParamSpec("P")
T = TypeVar("T")


def paced(step: Callable[P, T]) -> Callable[P, T]:
    """`step`, which takes STEP seconds unless it takes longer."""

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        end = time.monotonic() + STEP
        done = step(*args, **kwargs)
        time.sleep(max(0.0, end - time.monotonic()))
        return done

    return run


if __name__ == "__main__":
    InnerTrainer._step = paced(InnerTrainer._step)  # type: ignore[method-assign]
    InnerTrainer.gradient = paced(InnerTrainer.gradient)  # type: ignore[method-assign]
    worker.main()
