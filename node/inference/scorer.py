"""The interface of everything that predicts next tokens: a model on this machine, an ensemble, or experts on peers.

A **scorer** holds sequences in numbered slots, and predicts what follows each of them. A slot begins with the first
piece that it is given, and is empty again after `end`. Rules:
- Only one thread (the engine's) calls a scorer, one call at a time; a call may block for as long as it takes.
- The prediction for a piece is that of its whole sequence, whatever else is in the call, up to the rounding of sums.
- After an exception no slot of that call is usable, nor is a slot that the answer names in `failed`: the caller ends
  these slots, and goes on with the others. A ShoalError says who is at fault; any other exception is a bug.

An **expert** is a scorer that an ensemble asks. It must also support `within`: how well it predicted the tokens that it
was given, as an ensemble trusts those experts that predicted a text best (node/experts/posterior.py). Rules for
experts, beside those above:
- Calls about one sequence come one after the other; several experts are called at the same time, from several threads.
- `end` neither blocks nor raises.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal.protocol.base.errors import LocalError, ShoalError

LogProbs = np.ndarray[Any, np.dtype[np.float32]]

log = logging.getLogger("shoal.serve")


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens, at least one, that follow what a slot holds already."""

    slot: int
    tokens: tuple[int, ...]
    more: bool = False  # the prompt goes on after this piece: its row of predictions is not used, and may hold anything


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """A scorer's answer to several pieces; what it says of slots in `failed` means nothing.

    `within` sums log p of each piece's tokens except the first, which the answer to the piece before has predicted. It
    need not mean anything unless it was asked for.
    """

    rows: LogProbs  # (pieces, vocab): natural log-probabilities of the token after each piece
    within: np.ndarray[Any, np.dtype[np.float64]]  # (pieces,)
    failed: Mapping[int, ShoalError] = field(default_factory=dict)  # by slot: why its sequence cannot go on


class Scorer(ABC):
    """Predicts next tokens for sequences in slots 0 to `slots` - 1. See the rules of this file."""

    vocab: int  # tokens are 0 to `vocab` - 1
    limit: int  # the context length: the most tokens that a slot holds
    slots: int
    version: str  # letters and digits that name the weights for new sequences; they change with the weights

    @abstractmethod
    def extend(self, pieces: Sequence[Piece], within: bool = False) -> Predictions:
        """Add pieces to slots, and predict what follows each. `within` asks for Predictions.within, too.

        The pieces are of distinct slots; none makes its slot longer than `limit`.
        """

    @abstractmethod
    def end(self, slot: int) -> None:
        """Forget what the slot holds, if anything."""

    def version_of(self, slot: int) -> str:
        """The version of the weights that the sequence in a slot is scored with; called by the engine's thread."""
        return self.version

    def about(self) -> dict[str, Any]:
        """What /v1/models adds about this scorer, as JSON; called from any thread."""
        return {}

    def notes(self, slot: int) -> dict[str, Any]:
        """How the sequence in a slot was scored, as JSON; called by the engine's thread before it ends the slot."""
        return {}


def as_shoal_error(error: Exception) -> ShoalError:
    """The error itself if it is a ShoalError; any other is a bug, which is logged and becomes a LocalError."""
    if isinstance(error, ShoalError):
        return error
    log.error("the model failed", exc_info=error)
    return LocalError(f"the model failed: {type(error).__name__}; the log of the server has the details")
