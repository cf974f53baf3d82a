"""A logarithmic axis for the charts of shoal.node.client.report.plot."""

from __future__ import annotations

import math

from shoal.node.client.report.plot import Axis


class LogAxis(Axis):
    """Positive values by their logarithm; ticks at 1, 2 and 5 of each decade, or at the decades if those are many."""

    def share(self, value: float) -> float:
        """How far a value is from the low end (0) to the high end (1)."""
        return math.log(value / self.low) / (math.log(self.high / self.low) or 1.0)

    def ticks(self, most: int) -> list[float]:
        """The round numbers within the range."""
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        few = len(decades) * 3 <= most
        every = [factor * 10.0**decade for decade in decades for factor in ((1, 2, 5) if few else (1,))]
        return [each for each in every if self.low <= each * (1 + 1e-9) and each <= self.high * (1 + 1e-9)]
