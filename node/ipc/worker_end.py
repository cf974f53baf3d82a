"""Why a worker ended, and whether to start another.

An end is final if the worker itself blames this machine or its owner's choices: a missing device, a text that is not
the run's, a model that this library builds differently. Another worker would fail in the same way until somebody fixes
that. A bug, of a library or of Shoal, is final once several workers in a row had the same one, and no worker of this
run has ever made a step here. Everything else may pass, including a lack of memory: a crash, a hang, a failing network
or device, a loss that is not a number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from shoal.node.base.refusals import refusal
from shoal.node.base.room import NoRoom
from shoal.protocol.base.errors import LocalError, ShoalError
from shoal.protocol.base.shortages import is_temporary

MAX_REASON = 500  # characters
ALIKE = 5  # workers in a row with the same mistake: a quarter of a minute at least, with the back-off between them
DEVICES = ("cuda", "cudnn", "cublas", "nccl", "hip ", "mps")  # words of errors that depend on a device's state


class Reason(NamedTuple):
    """How a worker reports the error that ends it."""

    words: str
    is_final: bool  # another worker would fail, too, until somebody fixes the cause
    is_mistake: bool  # a bug, which another worker would have as well from the same start


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """The end of a worker's life, for people."""

    words: str
    is_final: bool = False
    mistake: str = ""  # the error message, if a bug was the cause

    def __str__(self) -> str:
        return self.words


class WorkerHistory:
    """The ends of one run's workers on this node, to recognise a mistake that is repeated."""

    def __init__(self) -> None:
        self._has_stepped = False
        self._mistake = ""
        self._count = 0  # workers in a row that ended by this mistake

    def stepped(self) -> None:
        """A worker has made a step: the run can be trained here, so later failures may pass."""
        self._has_stepped = True

    def judge(self, ended: WorkerEnd) -> WorkerEnd:
        """Add an end; returns it, made final if it is the last of ALIKE ends by the same mistake."""
        is_same = bool(ended.mistake) and ended.mistake == self._mistake
        self._mistake, self._count = ended.mistake, self._count + 1 if is_same else 1
        if self._has_stepped or not ended.mistake or self._count < ALIKE:
            return ended
        return WorkerEnd(f"{ended.words}; so did each of {self._count} workers before its first step", is_final=True)


def failure_reason(error: Exception) -> Reason:
    """How a worker that fails by `error` reports it."""
    said = refusal(error)
    words = str(error) if isinstance(error, ShoalError) else str(said or f"{type(error).__name__}: {error}")
    is_final = isinstance(error, LocalError) and not isinstance(said, NoRoom) and not is_temporary(error)
    may_pass = isinstance(error, ShoalError | OSError | ArithmeticError) or is_temporary(error) or _is_of_device(error)
    return Reason(words[:MAX_REASON], is_final, said is None and not may_pass)


def _is_of_device(error: Exception) -> bool:
    return any(name in str(error).lower() for name in DEVICES)
