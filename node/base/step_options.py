"""Options of how a machine computes inner steps, and less demanding ones to try when memory does not suffice.

A batch is processed in micro-batches, and the gradient is the mean over the whole batch in any case. So these options
affect only time, memory and the rounding of sums.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shoal.protocol.base.wire import value

MAX_MICRO_BATCH = 65_536  # sequences; the same limit as for a manifest's batch


@value
class TrainerOptions:
    """Options of the trainer, private to a node."""

    micro_batch: int = 0  # sequences that are processed at once, at most; 0: all of a batch, or as many as fit
    recompute: bool = False  # recompute the layers' activations in the backward pass, instead of keeping them
    compiled: bool = False  # compile the layers by torch.compile
    weights: tuple[str, ...] = ()  # folders to search for frozen weights, in runs of adapters

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders of weights."""
        return tuple(map(Path, self.weights))

    def at_once(self, rows: int) -> int:
        """The size of a micro-batch, for a batch of `rows` sequences."""
        return min(rows, self.micro_batch or rows)

    def smaller(self, rows: int) -> TrainerOptions | None:
        """The options to try after a batch of `rows` sequences was too much; None if nothing is left to try."""
        at_once = self.at_once(rows)
        if at_once > 1:
            return replace(self, micro_batch=(at_once + 1) // 2)
        return None if self.recompute else replace(self, micro_batch=1, recompute=True)

    def in_words(self, rows: int) -> str:
        """How a batch of `rows` sequences is processed, for people."""
        at_once = self.at_once(rows)
        pieces = "at once" if at_once == rows else f"in micro-batches of {at_once}"
        how = [f"{rows} sequences {pieces}"]
        how += ["activations recomputed"] if self.recompute else []
        return ", ".join([*how, "layers compiled"] if self.compiled else how)
