"""The picture of convergence.py: validation loss over steps, and the gap that was recovered over bytes sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from kit.convergence_run import Line
from kit.convergence_table import Row
from kit.recipes import ALONE, CHOSEN, JOINED, REFERENCES

COLORS = ("#111111", "#1a7f8e", "#5ab4c4", "#9bd0d8", "#7a5ba8", "#c0392b", "#e0a030", "#1e8449", "#c46fa8")


def draw(lines: Sequence[Line], table: Sequence[Row], path: Path) -> None:
    """An SVG of all methods and both references that have lines; curves are means over seeds."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "shoal"
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    colors = dict(zip((name for name in CHOSEN if name not in REFERENCES), COLORS, strict=True))
    for name in CHOSEN:
        if points := curve([line for line in lines if line["name"] == name]):
            style = {ALONE: "--", JOINED: ":"}.get(name, "-")
            left.plot(*zip(*points, strict=True), style, color=colors.get(name, "#888888"), linewidth=1.4, label=name)
    left.set(xlabel="steps", ylabel="validation loss of the averaged model, nats per byte")
    left.set_ylim(*_limits(lines))
    left.legend(frameon=False, fontsize=8, ncols=2)
    for row in table:
        if row.name not in REFERENCES and row.gap is not None:
            right.plot(row.sent, row.gap.mean, "o", color=colors[row.name], markersize=6)
            right.plot([row.sent] * 2, [row.gap.low, row.gap.high], color=colors[row.name], linewidth=1)
            right.annotate(row.name, (row.sent, row.gap.mean), (6, 3), textcoords="offset points", fontsize=8)
    right.set(xscale="log", xlabel="bytes sent per parameter and 1,000 tokens", ylabel="gap recovered")
    right.margins(x=0.25)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def curve(lines: Sequence[Line]) -> list[tuple[int, float]]:
    """(steps, the mean over the lines that have a loss there), in order."""
    losses: defaultdict[int, list[float]] = defaultdict(list)
    for line in lines:
        for step, loss in line.get("curve", ()):
            if loss is not None:
                losses[step].append(loss)
    return [(step, sum(each) / len(each)) for step, each in sorted(losses.items())]


def _limits(lines: Sequence[Line]) -> tuple[float | None, float | None]:
    """From the lowest loss to where *alone* was early: what is above tells nothing."""
    alone = curve([line for line in lines if line["name"] == ALONE])
    lowest = [line["loss"] for line in lines if line["loss"] is not None]
    return (min(lowest) - 0.05 if lowest else None), (alone[len(alone) // 10][1] if len(alone) > 1 else None)
