"""How a machine computes its steps: what its owner has chosen, and smaller choices for when that does not fit.

A step's batch is processed in micro-batches, and its gradient is the mean over the whole batch in any case. So these
options change time, memory and the rounding of sums, and nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shoal.protocol.base.wire import value

MAX_MICRO_BATCH = 65_536  # sequences, as of a manifest's batch


@value
class TrainerOptions:
    """Private to a node."""

    micro_batch: int = 0  # sequences that are worked on at once, at most; 0: all of a batch, or as many as fit
    recompute: bool = False  # the layers' activations are made again for the backward pass, not kept
    compiled: bool = False  # the layers, by torch.compile
    weights: tuple[str, ...] = ()  # folders in which frozen weights may lie, for runs of adapters

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders of weights."""
        return tuple(map(Path, self.weights))

    def at_once(self, rows: int) -> int:
        """How many of a batch's `rows` sequences make a micro-batch."""
        return min(rows, self.micro_batch or rows)

    def smaller(self, rows: int) -> TrainerOptions | None:
        """What to try when a batch of `rows` sequences was too much; None if there is nothing left to try."""
        at_once = self.at_once(rows)
        if at_once > 1:
            return replace(self, micro_batch=(at_once + 1) // 2)
        return None if self.recompute else replace(self, micro_batch=1, recompute=True)

    def in_words(self, rows: int) -> str:
        """How a batch of `rows` sequences is worked on, for people."""
        at_once = self.at_once(rows)
        pieces = "at once" if at_once == rows else f"in micro-batches of {at_once}"
        how = [f"{rows} sequences {pieces}"]
        how += ["activations recomputed"] if self.recompute else []
        return ", ".join([*how, "layers compiled"] if self.compiled else how)
