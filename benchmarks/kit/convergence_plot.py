"""The plot of convergence.py: validation loss over steps, and the recovered gap over bytes sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from kit.convergence_run import Line
from kit.convergence_table import Row
from kit.log_axis import LogAxis
from kit.recipes import ALONE, CHOSEN, REFERENCES
from shoal.node.client.report.plot import Axis, Plot, picture

COLORS = ("#4e79a7", "#1a7f8e", "#5ab4c4", "#84b8c4", "#7a5ba8", "#c0392b", "#e0a030", "#1e8449", "#c46fa8")


def draw(lines: Sequence[Line], table: Sequence[Row], path: Path) -> None:
    """Writes an SVG of all methods and references that have lines; curves are means over seeds."""
    keys = [(name, name) for name in CHOSEN if any(line["name"] == name for line in lines)]
    charts = [each for each in (_losses(lines), _gaps(table)) if each is not None]
    colors = zip((name for name in CHOSEN if name not in REFERENCES), COLORS, strict=True)
    style = "".join(f".{name} {{ --hue: {color}; }}\n" for name, color in colors)
    path.write_text(picture(charts, keys, style), encoding="utf-8")


def _losses(lines: Sequence[Line]) -> Plot:
    """The loss over the steps, cut off at the axes' limits."""
    curves = {name: curve([line for line in lines if line["name"] == name]) for name in CHOSEN}
    low, high = _limits(lines)
    steps = Axis(0, max((step for points in curves.values() for step, _ in points), default=1), "steps")
    losses = Axis(low, high, "validation loss, nats per byte")
    plot = Plot(steps, losses, "Validation loss of the averaged model", width=600)
    plot.axes()
    for name, points in curves.items():
        if shown := [(step, loss) for step, loss in points if low <= loss <= high]:
            plot.line(shown, name, name)
    return plot


def _gaps(table: Sequence[Row]) -> Plot | None:
    """The recovered gap over the bytes sent: the mean over seeds, and a line for their range."""
    found = [(row, row.gap) for row in table if row.name not in REFERENCES and row.gap is not None and row.sent > 0]
    if not found:
        return None
    low, high = min(gap.low for _, gap in found), max(gap.high for _, gap in found)
    pad = 0.06 * (high - low) or 0.1
    least, most = min(row.sent for row, _ in found), max(row.sent for row, _ in found)
    sent = LogAxis(least / 1.5, most * 4, "bytes sent per parameter and 1,000 tokens")
    plot = Plot(sent, Axis(low - pad, high + pad, "gap recovered"), "Gap recovered over bytes sent", width=520)
    plot.axes()
    named = list[tuple[float, float]]()
    for row, gap in sorted(found, key=lambda each: -each[1].mean):
        x, y = plot.at_x(row.sent), plot.at_y(gap.mean)
        plot.draw("line", f"curve {row.name}", x1=x, x2=x, y1=plot.at_y(gap.low), y2=plot.at_y(gap.high))
        plot.dot(row.sent, gap.mean, row.name, f"{row.name}: {gap.mean:.3f}", 4)
        while any(abs(x - left) < 100 and abs(y - height) < 13 for left, height in named):
            y += 1  # below the names that are there
        named.append((x, y))
        plot.text(x + 8, y + 4, row.name, "start", "tick")
    return plot


def curve(lines: Sequence[Line]) -> list[tuple[int, float]]:
    """(steps, mean loss over the lines that have one there), in order."""
    losses: defaultdict[int, list[float]] = defaultdict(list)
    for line in lines:
        for step, loss in line.get("curve", ()):
            if loss is not None:
                losses[step].append(loss)
    return [(step, sum(each) / len(each)) for step, each in sorted(losses.items())]


def _limits(lines: Sequence[Line]) -> tuple[float, float]:
    """The range of the loss axis: from the lowest loss to that of *alone* after a tenth of the training."""
    alone = curve([line for line in lines if line["name"] == ALONE])
    every = [loss for _, loss in curve(lines)]
    lowest = [line["loss"] for line in lines if line["loss"] is not None] or every or [0.0]
    return min(lowest) - 0.05, alone[len(alone) // 10][1] if len(alone) > 1 else max([*every, *lowest])
