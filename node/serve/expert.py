"""What an ensemble asks of each of its experts: what follows a text, and how well the expert had foreseen that text.

An expert is a scorer whose answer also says what the tokens that it was given were worth to it, as an ensemble believes
whoever foresaw most (node/experts/posterior.py). It may be a model here, or on another peer.

Rules for experts, beside those for scorers:
- One sequence's calls come one after the other; those to different experts come side by side, from several threads.
- What raises leaves no slot of that call usable, and what is named in `failed` not those. Such sequences go on without
  the expert, and only `end` their slots.
- `end` neither blocks nor raises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from shoal.node.serve.scorer import LogProbs, Piece, Scorer
from shoal.protocol.errors import ShoalError


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
    """See above."""

    def weigh(self, pieces: Sequence[Piece]) -> Weighed:
        """As `extend`, with what the tokens of the pieces were worth."""
        ...


@runtime_checkable
class Placed(Protocol):
    """An expert that is somewhere else, or may be."""

    def place(self) -> dict[str, Any]:
        """What /v1/models says of where it is; called from any thread."""
        ...


class Stepwise:
    """An expert of any scorer, which is given a piece's tokens one by one. Right for all, and slow for long prompts."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self.vocab, self.limit, self.slots, self.version = scorer.vocab, scorer.limit, scorer.slots, scorer.version

    def extend(self, pieces: Sequence[Piece]) -> LogProbs:
        """See Scorer."""
        return self._scorer.extend(pieces)

    def end(self, slot: int) -> None:
        """See Scorer."""
        self._scorer.end(slot)

    def weigh(self, pieces: Sequence[Piece]) -> Weighed:
        """See Expert."""
        rows = np.empty((len(pieces), self.vocab), np.float32)
        within = np.zeros(len(pieces))
        for place in range(max(len(piece.tokens) for piece in pieces)):
            still = [number for number, piece in enumerate(pieces) if place < len(piece.tokens)]
            if place:
                within[still] += [rows[number, pieces[number].tokens[place]] for number in still]
            ones = [Piece(pieces[number].slot, (pieces[number].tokens[place],)) for number in still]
            rows[still] = self._scorer.extend(ones)
        return Weighed(rows, within)
