"""A small chart in SVG: two axes with round ticks, and shapes drawn in their coordinates.

Colours and fonts come from chart.css by class names, so that one drawing serves light and dark. A chart is part of a
page (`Plot.root`) or, with `picture`, a file of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from xml.etree.ElementTree import Element, tostring

from shoal.node.client.report.markup import add, tag

WIDTH_OF_LETTER = 6.6  # pixels, at the 12 of all text in a chart
LINE_OF_LEGEND = 20

Key = tuple[str, str]  # a legend's entry: the CSS classes of its sample, and words


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values, its label with the unit, and the format of a value."""

    low: float
    high: float
    label: str
    write: Callable[[float], str] = "{:g}".format
    whole: bool = False  # only whole numbers have ticks

    def share(self, value: float) -> float:
        """How far a value is from the low end (0) to the high end (1)."""
        return (value - self.low) / ((self.high - self.low) or 1.0)

    def ticks(self, most: int) -> list[float]:
        """Round numbers within the range, about `most` at most."""
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
        self.x, self.y, self.width, self.height = x, y, width, height
        self.left, self.right, self.top, self.bottom = left, width - 14, top, height - 44
        self.root = tag("svg", viewBox=f"0 0 {width} {height}", role="img", aria_label=title)
        self.root.append(tag("title", title))

    def at_x(self, value: float) -> float:
        """The x coordinate of a value."""
        return self.left + self.x.share(value) * (self.right - self.left)

    def at_y(self, value: float) -> float:
        """The y coordinate of a value."""
        return self.bottom - self.y.share(value) * (self.bottom - self.top)

    def axes(self, *, rows: bool = False) -> None:
        """Draw grid lines, ticks and labels; with `rows` none of the y axis, as the caller draws rows."""
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
        """Draw vertical lines (x, text, css), with the texts above in rows, ordered so that no line crosses a text."""
        ordered = sorted(marks, reverse=True)
        fit = all(self.at_x(x) + len(text) * WIDTH_OF_LETTER < self.right for x, text, _ in ordered)
        for row, (x, text, css) in enumerate(ordered if fit else ordered[::-1]):
            at, height = self.at_x(x), self.top - above - 15 * row
            self.draw("line", f"mark {css}", text, x1=at, x2=at, y1=height + 4, y2=self.bottom)
            self.text(at, height, text, "start" if fit else "end", f"mark-text {css}")

    def text(self, x: float, y: float, text: str, anchor: str, css: str) -> Element:
        """A text."""
        element = tag("text", text, class_=css, x=x, y=y, text_anchor=anchor)
        self.root.append(element)
        return element

    def draw(self, kind: str, css: str, title: str = "", **attributes: object) -> None:
        """A shape, with a title that is shown on hovering."""
        self.root.append(tag(kind, tag("title", title) if title else None, class_=css, **attributes))


def chart_style() -> str:
    """The style sheet of all charts."""
    return files("shoal.node.client.report").joinpath("chart.css").read_text(encoding="utf-8")


def picture(charts: Sequence[Plot], keys: Sequence[Key], style: str = "") -> str:
    """An SVG file with the charts side by side and a legend below.

    `style` is added to chart.css, for classes that only these charts use.
    """
    width, below = sum(each.width for each in charts), max(each.height for each in charts)
    places = _legend_places(keys, width)
    height = below + (places[-1][1] + LINE_OF_LEGEND if places else 0)
    root = tag("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height}", width=width, height=height)
    add(root, tag("style", chart_style() + style))
    add(root, tag("rect", class_="paper", width="100%", height="100%"))
    x = 0
    for each in charts:
        each.root.attrib.update(x=str(x), width=str(each.width), height=str(each.height))
        add(root, each.root)
        x += each.width
    for (css, words), (left, down) in zip(keys, places, strict=True):
        add(root, _sample(css, left, below + down))
        add(root, tag("text", words, x=left + 26, y=below + down + 4))
    return tostring(root, encoding="unicode") + "\n"


def _legend_places(keys: Sequence[Key], width: int) -> list[tuple[int, int]]:
    """The places (x, y) of a legend's entries below the charts, in rows that end at `width`."""
    places, x, y = list[tuple[int, int]](), 20, 14
    for _, words in keys:
        needed = 26 + round(len(words) * WIDTH_OF_LETTER) + 20
        if x + needed > width and x > 20:
            x, y = 20, y + LINE_OF_LEGEND
        places.append((x, y))
        x += needed
    return places


def _sample(css: str, x: int, y: int) -> Element:
    """The sample of a legend's entry: a box for `fill ...`, a ring for `hollow`, otherwise a line."""
    if css.startswith("fill "):
        return tag("rect", class_=f"bar {css}", x=x + 4, y=y - 6, width=12, height=12)
    if css == "hollow":
        return tag("circle", class_="dot hollow", cx=x + 10, cy=y, r=5)
    return tag("line", class_=f"curve {css}", x1=x, x2=x + 20, y1=y, y2=y)
