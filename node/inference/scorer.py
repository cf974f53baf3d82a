"""The interfaces behind which everything that gives probabilities stands: a model here, or several on other machines.

A **scorer** is what the engine calls: it holds sequences in numbered slots, and says what follows each. A slot begins
with the first piece that it is given, and is empty again after `end`. Rules for scorers:
- Only the engine's thread calls, one call at a time; a call may block for as long as it takes.
- A piece's answer is that of its whole sequence, whatever else is in the call, up to the rounding of sums.
- What raises leaves no slot of that call usable: the engine ends them all, and goes on with the others. A ShoalError
  says whose fault it was to whoever asked; anything else is a bug. `SomeFailed` leaves slots usable that it does not
  name.

An **expert** is what an ensemble asks: a scorer whose answer also says what the tokens that it was given were worth to
it, as an ensemble believes whoever foresaw most (node/experts/posterior.py). Rules for experts, beside those above:
- One sequence's calls come one after the other; those to different experts come side by side, from several threads.
- What raises leaves no slot of that call usable, and what is named in `failed` not those. Such sequences go on without
  the expert, and only `end` their slots.
- `end` neither blocks nor raises.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from shoal.protocol.base.errors import LocalError, ShoalError

LogProbs = np.ndarray[Any, np.dtype[np.float32]]

log = logging.getLogger("shoal.serve")


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens, at least one, that follow what a slot holds already."""

    slot: int
    tokens: tuple[int, ...]
    more: bool = False  # whether the prompt goes on: then its row of scores is not looked at, and may hold anything


class SomeFailed(Exception):
    """Not all of a call's sequences can go on. `rows` are the scores of all its pieces, but mean nothing for those."""

    def __init__(self, rows: LogProbs, failed: Mapping[int, ShoalError]) -> None:
        """`failed` has what went wrong, by slots."""
        super().__init__(f"{len(failed)} sequences cannot go on")
        self.rows, self.failed = rows, failed


def in_words(error: Exception) -> ShoalError:
    """The error itself if it was raised on purpose; else it is a bug, in the log."""
    if isinstance(error, ShoalError):
        return error
    log.error("the model failed", exc_info=error)
    return LocalError(f"the model failed: {type(error).__name__}; the log of the server has the details")


class Scorer(Protocol):
    """Next-token log-probabilities for sequences in slots 0 to `slots` - 1."""

    @property
    def vocab(self) -> int:
        """Tokens are 0 to `vocab` - 1."""
        ...

    @property
    def limit(self) -> int:
        """The context length: tokens that a slot holds at most."""
        ...

    @property
    def slots(self) -> int:
        """Sequences that it holds at once."""
        ...

    @property
    def version(self) -> str:
        """Which weights score new sequences, in letters and digits; another after they have changed."""
        ...

    def extend(self, pieces: Sequence[Piece]) -> LogProbs:
        """Natural logarithms of probabilities, (pieces, vocab): of what follows each piece's last token.

        The pieces are of distinct slots; none makes its slot longer than `limit`.
        """
        ...

    def end(self, slot: int) -> None:
        """Forget what the slot holds, if anything."""
        ...


@runtime_checkable
class Telling(Protocol):
    """A scorer that has more to tell than numbers, in what JSON can hold."""

    def about(self) -> dict[str, Any]:
        """What /v1/models says of it; called from any thread."""
        ...

    def told(self, slot: int) -> dict[str, Any]:
        """How the sequence in a slot was scored; asked as it ends, by the engine's thread."""
        ...


@runtime_checkable
class Changing(Protocol):
    """A scorer whose `version` may change while sequences are written."""

    def version_of(self, slot: int) -> str:
        """Which weights score the sequence in a slot; by the engine's thread."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Weighed:
    """An expert's answer to several pieces.

    `within` leaves out a piece's first token, as that has been foreseen, or not, in the answer to the piece before;
    what a sequence begins with nobody foresees.
    """

    rows: LogProbs  # (pieces, vocab), as Scorer.extend gives them
    within: np.ndarray[Any, np.dtype[np.float64]]  # (pieces,): log p of a piece's tokens but the first, summed
    failed: Mapping[int, ShoalError] = field(default_factory=dict)  # by slots: whose row and worth mean nothing


@runtime_checkable
class Expert(Scorer, Protocol):
    """See the rules of this file."""

    def weigh(self, pieces: Sequence[Piece]) -> Weighed:
        """As `extend`, with what the tokens of the pieces were worth."""
        ...


@runtime_checkable
class Placed(Protocol):
    """An expert that is somewhere else, or may be."""

    def place(self) -> dict[str, Any]:
        """What /v1/models says of where it is; called from any thread."""
        ...
