"""What a script tells of its loss, by the steps of its optimizer that it belongs to.

A loss is that of a step's forward pass. People tell it before `optimizer.step()` or after it: told after a step for
which none was told before, it is that step's; else it is the next one's. A step that ends a round hands in at once, so
of it only a loss that was told before is in the round's mean.
"""

from __future__ import annotations

import math


class Losses:
    """Of one script; the means are those of stints, as their ends hand them in."""

    def __init__(self) -> None:
        self._latest = math.nan
        self._is_ahead = False  # the latest is of the step that comes
        self._is_open = False  # nothing was told of the last step yet
        self._is_over = False  # the last step's stint has ended
        self._total, self._count = 0.0, 0  # of the stint's steps of which something was told

    @property
    def known(self) -> float | None:
        """The latest, if it is a number."""
        return self._latest if math.isfinite(self._latest) else None

    def tell(self, loss: float) -> None:
        """The script has computed a loss."""
        self._latest = loss
        if not self._is_open:
            self._is_ahead = True
        elif not self._is_over:
            self._count_in()
        self._is_open = False

    def stepped(self) -> None:
        """The script has made a step."""
        if self._is_ahead:
            self._count_in()
        self._is_open, self._is_ahead, self._is_over = not self._is_ahead, False, False

    def take_mean(self) -> float:
        """The mean of what was told of this stint's steps, the latest if it was nothing; another stint begins."""
        mean = self._total / self._count if self._count else self._latest
        self._total, self._count, self._is_over = 0.0, 0, True
        return mean

    def _count_in(self) -> None:
        self._total, self._count = self._total + self._latest, self._count + 1
