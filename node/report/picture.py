"""loss.png: the loss chart as a picture to show around. The only place that knows the plotting library."""

from __future__ import annotations

from pathlib import Path

from shoal.node.report.curves import loss_curves, marks, validation_points
from shoal.node.report.read import Story

STYLES = {
    "swarm": {"color": "#111111", "linewidth": 2.4},
    "alone": {"color": "#888888", "linewidth": 1.8, "linestyle": "--"},
    "joined": {"color": "#888888", "linewidth": 1.8, "linestyle": ":"},
}
PEER = {"linewidth": 1.2, "alpha": 0.8}
MARKED = {"kill": "#c0392b", "join": "#1e8449"}


def save_loss(story: Story, path: Path) -> None:
    """Draw the picture; one that says so where there is nothing to draw yet."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # it loads for a second: only here
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(9, 5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    curves = loss_curves(story)
    for curve in curves:
        tokens, losses = zip(*curve.points, strict=True)
        style = STYLES.get(curve.kind, PEER)
        axes.plot(tokens, losses, label=curve.name, marker="." if len(tokens) <= 60 else "", **style)
    for number, (_, kind, point) in enumerate(validation_points(story)):
        label = "validation loss" if number == 0 else None
        axes.plot(*point, "o", mfc="none", ms=9, mew=1.6, color=STYLES[kind]["color"], label=label)
    for each in marks(story):
        if (then := story.samples_after(each.round)) is not None:
            axes.axvline(then, color=MARKED[each.kind], linewidth=1, label=f"{each.text}, round {each.round}")
    if not curves:
        axes.text(0.5, 0.5, "no round was committed", ha="center", va="center", transform=axes.transAxes)
    else:
        axes.legend(frameon=False)
    axes.set(xlabel="tokens that all members together have trained on", ylabel="loss, nats per byte")
    axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    fresh = path.with_suffix(".new.png")
    figure.savefig(fresh)
    fresh.replace(path)
