"""A run's past as curves of bounded size: the whole run stays visible, ever more coarsely.

When a curve is full its points are merged two by two, and from then on each new point stands for twice as many seconds.
So a week needs no more memory than an hour, and a page that is loaded late still shows the beginning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MOST = 1440  # points; even

Point = tuple[float, ...]  # (seconds since 1970, value, value, ...); NaN: not known


@dataclass(frozen=True, slots=True)
class News:
    """Points that a reader lacks; `anew` says that they replace all that it has."""

    anew: bool
    points: list[Point]


class Curve:
    """The points of one run, oldest first."""

    def __init__(self, most: int = MOST) -> None:
        self.points: list[Point] = []
        self._most = most
        self._width = 1  # how many added points one kept point stands for
        self._open: list[Point] = []  # fewer than that, not yet a point

    def add(self, point: Point) -> News:
        """Keep `point`; what is new by it, which may be nothing."""
        self._open.append(point)
        if len(self._open) < self._width:
            return News(False, [])
        self.points.append(_merged(self._open))
        self._open = []
        if len(self.points) < self._most:
            return News(False, self.points[-1:])
        self.points = [_merged(pair) for pair in zip(self.points[::2], self.points[1::2], strict=True)]
        self._width *= 2
        return News(True, self.points)


def _merged(points: Sequence[Point]) -> Point:
    """The last time, and the mean of what is known of each value."""
    _, *columns = zip(*points, strict=True)
    return (points[-1][0], *map(_mean, columns))


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan
