"""Why a worker ended, and whether to start another.

Final are ends that a worker itself blames on this machine or its owner's choices, in words: a missing device, a text
that is not the run's, a model that this library builds differently. Another worker would fail alike until somebody
fixes it. A bug, of a library or of Shoal, is final once several workers in a row had the same one and none of this run
has ever made a step here. Everything else may pass, lack of memory included: a crash, a hang, a failing network or
device, a loss that is not a number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from shoal.node.base.refusals import refusal
from shoal.node.base.room import NoRoom
from shoal.protocol.base.errors import LocalError, ShoalError
from shoal.protocol.base.shortages import is_temporary

MAX_REASON = 500  # characters
ALIKE = (
    5  # workers in a row that end by the same mistake: with the back-off between them, at least a quarter of a minute
)
DEVICES = ("cuda", "cudnn", "cublas", "nccl", "hip ", "mps")  # in errors that come of what a device is doing just now


class Reason(NamedTuple):
    """What a worker says of the error that ends it."""

    words: str
    is_final: bool  # another worker could do no better until somebody mends that
    is_mistake: bool  # of a program, which another worker would make as well from the same start


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """The end of a worker's life, for people."""

    words: str
    is_final: bool = False
    mistake: str = ""  # of a program, in its own words, if that was it

    def __str__(self) -> str:
        return self.words


class WorkerHistory:
    """The lives of one run's workers on this node, one after the other."""

    def __init__(self) -> None:
        self._has_stepped = False
        self._mistake = ""
        self._count = 0  # of lives in a row that ended by it

    def stepped(self) -> None:
        """A worker has made a step: so it can be done here, and what fails later may pass."""
        self._has_stepped = True

    def judge(self, ended: WorkerEnd) -> WorkerEnd:
        """This end, which is final too if it is the last of several that are alike."""
        is_same = bool(ended.mistake) and ended.mistake == self._mistake
        self._mistake, self._count = ended.mistake, self._count + 1 if is_same else 1
        if self._has_stepped or not ended.mistake or self._count < ALIKE:
            return ended
        return WorkerEnd(f"{ended.words}; so did each of {self._count} workers before its first step", is_final=True)


def failure_reason(error: Exception) -> Reason:
    """Why a worker ends that has met `error`."""
    said = refusal(error)
    words = str(error) if isinstance(error, ShoalError) else str(said or f"{type(error).__name__}: {error}")
    is_final = isinstance(error, LocalError) and not isinstance(said, NoRoom) and not is_temporary(error)
    may_pass = isinstance(error, ShoalError | OSError | ArithmeticError) or is_temporary(error) or _is_of_device(error)
    return Reason(words[:MAX_REASON], is_final, said is None and not may_pass)


def _is_of_device(error: Exception) -> bool:
    return any(name in str(error).lower() for name in DEVICES)
