"""A small chart in SVG: two linear axes with round ticks, and things drawn in their coordinates.

Colours and fonts come from the page's style sheet by class names, so that light and dark need one drawing only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from shoal.node.report.markup import tag

FONT = 12  # pixels, of all text in a chart
WIDTH_OF_LETTER = 6.6


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values, its name with the unit, and how a value is written."""

    low: float
    high: float
    label: str
    write: Callable[[float], str] = "{:g}".format
    whole: bool = False  # only whole numbers have ticks

    def share(self, value: float) -> float:
        """How far a value is from the low end (0) to the high end (1)."""
        return (value - self.low) / ((self.high - self.low) or 1.0)

    def ticks(self, most: int) -> list[float]:
        """Round numbers within the range, at most about `most`."""
        span = max(self.high - self.low, 1e-9)
        step = 10 ** math.floor(math.log10(span / most))
        step = next(step * factor for factor in (1, 2, 5, 10) if span / (step * factor) <= most)
        step = max(1.0, step) if self.whole else step
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


class Plot:
    """One chart of `width` x `height` units; it grows and shrinks with the page."""

    def __init__(
        self, x: Axis, y: Axis, title: str, *, width: int = 960, height: int = 340, left: int = 58, top: int = 14
    ) -> None:
        self.x, self.y = x, y
        self.left, self.right, self.top, self.bottom = left, width - 14, top, height - 44
        self.root = tag("svg", viewBox=f"0 0 {width} {height}", role="img", aria_label=title)
        self.root.append(tag("title", title))

    def at_x(self, value: float) -> float:
        """Where a value of the x axis lies."""
        return self.left + self.x.share(value) * (self.right - self.left)

    def at_y(self, value: float) -> float:
        """Where a value of the y axis lies."""
        return self.bottom - self.y.share(value) * (self.bottom - self.top)

    def axes(self, *, rows: bool = False) -> None:
        """Grid lines, ticks and labels; with `rows` the y axis is left to whoever draws the rows."""
        middle = (self.left + self.right) / 2
        for value in self.x.ticks(10 if self.right - self.left > 500 else 7):
            self.text(self.at_x(value), self.bottom + 17, self.x.write(value), "middle", "tick")
        self.text(middle, self.bottom + 37, self.x.label, "middle", "axis")
        if not rows:
            for value in self.y.ticks((self.bottom - self.top) // 34):
                self.draw("line", "grid", x1=self.left, x2=self.right, y1=self.at_y(value), y2=self.at_y(value))
                self.text(self.left - 7, self.at_y(value) + 4, self.y.write(value), "end", "tick")
            if self.y.label:
                height = (self.top + self.bottom) / 2
                label = self.text(13, height, self.y.label, "middle", "axis")
                label.set("transform", f"rotate(-90 13 {height:.1f})")
        self.draw("line", "base", x1=self.left, x2=self.right, y1=self.bottom, y2=self.bottom)

    def line(self, points: Sequence[tuple[float, float]], css: str, title: str) -> None:
        """A curve, with a dot for each point if they are few."""
        path = " ".join(f"{self.at_x(x):.1f},{self.at_y(y):.1f}" for x, y in points)
        self.draw("polyline", f"curve {css}", title, points=path)
        for x, y in points if len(points) <= 60 else ():
            self.dot(x, y, css, f"{title}: {self.y.write(y)} at {self.x.write(x)}")

    def dot(self, x: float, y: float, css: str, title: str, radius: float = 2.5) -> None:
        """A point."""
        self.draw("circle", f"dot {css}", title, cx=self.at_x(x), cy=self.at_y(y), r=radius)

    def bar(self, x: tuple[float, float], y: tuple[float, float], css: str, title: str) -> None:
        """A rectangle between two values of each axis."""
        left, right = self.at_x(x[0]), self.at_x(x[1])
        low, high = self.at_y(y[0]), self.at_y(y[1])
        self.draw("rect", f"bar {css}", title, x=left, y=high, width=max(right - left, 0.4), height=max(low - high, 0))

    def marks(self, marks: Iterable[tuple[float, str, str]], above: float = 6) -> None:
        """Vertical lines (x, words, css) with words on top, on rows so ordered that no line crosses other words."""
        ordered = sorted(marks, reverse=True)
        fit = all(self.at_x(x) + len(text) * WIDTH_OF_LETTER < self.right for x, text, _ in ordered)
        for row, (x, text, css) in enumerate(ordered if fit else ordered[::-1]):
            at, height = self.at_x(x), self.top - above - 15 * row
            self.draw("line", f"mark {css}", text, x1=at, x2=at, y1=height + 4, y2=self.bottom)
            self.text(at, height, text, "start" if fit else "end", f"mark-text {css}")

    def text(self, x: float, y: float, text: str, anchor: str, css: str) -> Element:
        """Words."""
        element = tag("text", text, class_=css, x=x, y=y, text_anchor=anchor)
        self.root.append(element)
        return element

    def draw(self, kind: str, css: str, title: str = "", **attributes: object) -> None:
        """A shape, with a title that shows when it is pointed at."""
        self.root.append(tag(kind, tag("title", title) if title else None, class_=css, **attributes))
