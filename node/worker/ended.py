"""Why a worker's life is over, and whether another could go better: the one place that knows.

Final is what a worker itself blames on this machine or its owner's choices, in words: a device that is not here, a text
that is not the run's, a model that this library makes otherwise. No other worker could do better until somebody mends
it. All else may pass, a want of memory too: a crash, a hang, a network that fails, a mistake of ours.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.node.refusals import refusal
from shoal.node.room import NoRoom
from shoal.protocol.errors import LocalError, ShoalError
from shoal.protocol.shortages import is_temporary

MAX_REASON = 500  # characters


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a worker's life, for people."""

    words: str
    is_final: bool = False

    def __str__(self) -> str:
        return self.words


def reason_of(error: Exception) -> tuple[str, bool]:
    """What a worker says of the error that ends it, and whether that is final."""
    said = refusal(error)
    words = str(error) if isinstance(error, ShoalError) else str(said or f"{type(error).__name__}: {error}")
    is_final = isinstance(error, LocalError) and not isinstance(said, NoRoom) and not is_temporary(error)
    return words[:MAX_REASON], is_final
