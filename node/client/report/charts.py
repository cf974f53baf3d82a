"""The charts of the page: loss, timeline, and the members, bytes and seconds of each round.

In the loss chart a point is a peer's mean training loss in one round, over the tokens that all members together have
trained on by then. The swarm's is the mean over its members, weighted by tokens. The references have curves of their
own. Validation losses on all held-out text are single points, at the beginning and at the end; those that the peers
have measured between rounds, on a sample of it, are a curve. NaN and infinite losses are not drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar
from xml.etree.ElementTree import Element

from shoal.node.client.report.markup import tag
from shoal.node.client.report.plot import Axis, Key, Plot, picture
from shoal.node.client.report.story import PHASES, Story, bars, by_round

HEAD = 40  # height of the space above a chart, for the texts of marks
ROW = 26  # height of a peer's row in the timeline
SHOWN = 24  # rounds that a timeline can show legibly
BEFORE = 4  # rounds shown before the first thing that happened
MOST_BARS = 120
MOST = 500  # points of a curve; more could not be distinguished

Kind = Literal["peer", "swarm", "validation", "alone", "joined"]
Point = tuple[float, float]  # tokens, nats per byte
T = TypeVar("T")
LOSS_STYLE = ".validation { --hue: var(--good); }\n.curve.validation { stroke-width: 2.4; }\n"  # beside chart.css


@dataclass(frozen=True, slots=True)
class Curve:
    """Training loss over tokens."""

    name: str
    kind: Kind
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """A death or an arrival, as a vertical line in charts."""

    text: str
    kind: Literal["kill", "join"]
    round: int
    at: float  # seconds


def loss_chart(story: Story) -> list[Element]:
    """Training loss over tokens, with the validation losses."""
    found = _loss_plot(story)
    return [] if found is None else [found[0].root, legend(found[1])]


def loss_picture(story: Story) -> str:
    """The loss chart as an SVG file; without a committed round, one that says so."""
    if (found := _loss_plot(story)) is not None:
        return picture([found[0]], found[1], LOSS_STYLE)
    empty = Plot(Axis(0, 1, ""), Axis(0, 1, ""), "Training loss over tokens", height=200)
    empty.text(empty.at_x(0.5), empty.at_y(0.5), "no round was committed", "middle", "axis")
    return picture([empty], [])


def _loss_plot(story: Story) -> tuple[Plot, list[Key]] | None:
    curves, validation = loss_curves(story), validation_points(story)
    points = [point for curve in curves for point in curve.points] + [point for _, _, point in validation]
    if not points:
        return None
    losses = [loss for _, loss in points]
    pad = 0.06 * (max(losses) - min(losses)) or 0.1
    x = Axis(0, max(tokens for tokens, _ in points), "tokens that all members together have trained on", si)
    y = Axis(min(losses) - pad, max(losses) + pad, "loss, nats per byte", "{:.3g}".format)
    plot = Plot(x, y, "Training loss over tokens", height=400, top=HEAD)
    plot.axes()
    plot.marks(
        (float(then), f"{each.text}, round {each.round}", each.kind)
        for each in marks(story)
        if (then := story.samples_after(each.round)) is not None
    )
    keys, number = list[Key](), 0
    for curve in curves:
        css = f"peer-{number % 8}" if curve.kind == "peer" else curve.kind
        number += curve.kind == "peer"
        plot.line(curve.points, css, curve.name)
        keys.append((css, curve.name))
    for name, kind, point in validation:
        plot.dot(*point, f"{kind} hollow", f"validation, {name}: {point[1]:.3f}", 5)
    if validation:
        keys.append(("hollow", "validation loss"))
    return plot, keys


def loss_curves(story: Story) -> list[Curve]:
    """The curves of the peers, of the swarm, of its validation and of the references, without empty ones."""
    curves = [Curve(peer, "peer", _peer_points(story, peer)) for peer in story.peers]
    curves.append(Curve("the swarm", "swarm", _swarm_points(story)))
    curves.append(Curve("validation, on a sample", "validation", _validation_curve(story)))
    for kind in ("alone", "joined"):
        if (reference := story.reference(kind)) is not None:
            name = "one peer alone" if kind == "alone" else "one big machine"
            curves.append(Curve(name, kind, reference.curve))
    return [Curve(each.name, each.kind, tuple(thin(each.points))) for each in curves if each.points]


def validation_points(story: Story) -> list[tuple[str, Kind, Point]]:
    """The name, kind and point of each validation loss."""
    result, points = story.result, list[tuple[str, Kind, Point]]()
    tokens = float(result.get("tokens") or 0)
    for name, at, key in (("before", 0.0, "initial_val_loss"), ("the swarm", tokens, "val_loss")):
        if _is_drawable(result.get(key)):
            points.append((name, "swarm", (at, float(result[key]))))
    for kind in ("alone", "joined"):
        reference = story.reference(kind)
        if reference is not None and reference.curve:
            name = "one peer alone" if kind == "alone" else "one big machine"
            points.append((name, kind, (reference.curve[-1][0], reference.loss)))
    return points


def marks(story: Story) -> list[Mark]:
    """The death and the arrival, if they happened."""
    found = []
    killed, came = story.first("killed"), story.first("newcomer")
    if killed is not None and (number := story.plan.get("kill_at")) is not None:
        found.append(Mark(f"{killed.fields['peer']} killed", "kill", int(number), killed.at))
    if came is not None:
        first = story.ledger.first_round_of(came.fields["peer"])
        if first is not None:
            found.append(Mark(f"{came.fields['peer']} joins", "join", first, came.at))
    return found


def thin(points: Sequence[T], most: int = MOST) -> list[T]:
    """At most `most` of the points, evenly spread, the first and the last among them."""
    if len(points) <= most:
        return list(points)
    return [points[round(place * (len(points) - 1) / (most - 1))] for place in range(most)]


def _is_drawable(loss: float | None) -> bool:
    return loss is not None and math.isfinite(loss)


def _peer_points(story: Story, peer: str) -> tuple[Point, ...]:
    points = []
    for each in story.reports(peer):
        samples = story.samples_after(int(each["round"]))
        if _is_drawable(each.get("loss")) and each["took_part"] and samples is not None:
            points.append((float(samples), float(each["loss"])))
    return tuple(points)


def _swarm_points(story: Story) -> tuple[Point, ...]:
    points = []
    for number in sorted(story.ledger.reports):
        by, samples = story.ledger.reports[number].values(), story.samples_after(number)
        told = [(each["tokens"], each["loss"]) for each in by if _is_drawable(each.get("loss")) and each["took_part"]]
        tokens = sum(weight for weight, _ in told)
        if tokens and samples is not None:
            points.append((float(samples), sum(weight * loss for weight, loss in told) / tokens))
    return tuple(points)


def _validation_curve(story: Story) -> tuple[Point, ...]:
    """The validation losses of the states after rounds, each the mean of what peers measured, by their sequences."""
    points = []
    for number in sorted(story.ledger.reports):
        by, samples = story.ledger.reports[number].values(), story.samples_after(number)
        told = [
            (each["validation_sequences"], each["validation_loss"])
            for each in by
            if _is_drawable(each.get("validation_loss")) and each.get("validation_sequences")
        ]
        sequences = sum(weight for weight, _ in told)
        if sequences and samples is not None:
            points.append((float(samples), sum(weight * loss for weight, loss in told) / sequences))
    return tuple(points)


def timeline(story: Story) -> list[Element]:
    """The phases over time: a row per peer, a bar per phase."""
    numbers = shown_rounds(story)
    found = bars(story, numbers)
    if not found:
        return []
    peers = [peer for peer in story.peers if any(each.peer == peer for each in found)]
    start, stop = min(each.start for each in found), max(each.stop for each in found)
    x, y = Axis(start, stop, "seconds since the beginning"), Axis(len(peers), 0, "")
    top = HEAD + 18
    plot = Plot(x, y, "Phases of each round", height=top + ROW * len(peers) + 44, left=72, top=top)
    plot.axes(rows=True)
    for row, peer in enumerate(peers):
        plot.text(plot.left - 8, plot.at_y(row + 0.5) + 4, peer, "end", "tick")
    for each in found:
        row = peers.index(each.peer)
        words = f"{each.peer}, round {each.round}: {PHASES.get(each.phase, each.phase)} {each.stop - each.start:.2f} s"
        plot.bar((each.start, each.stop), (row + 0.88, row + 0.12), each.phase, words)
    _round_numbers(plot, story, numbers)
    plot.marks(((each.at, each.text, each.kind) for each in marks(story) if start <= each.at <= stop), above=18)
    used = {each.phase for each in found}
    return [plot.root, legend([(f"fill {phase}", name) for phase, name in PHASES.items() if phase in used])]


def shown_rounds(story: Story) -> range:
    """The rounds of the timeline: all, or as many as are legible, from shortly before the first mark."""
    last = max(story.ledger.reports, default=0)
    if last <= SHOWN:
        return range(1, last + 1)
    first = max(1, min((each.round for each in marks(story)), default=last) - BEFORE)
    first = min(first, last - SHOWN + 1)
    return range(first, first + SHOWN)


def members_chart(story: Story) -> Element:
    """Members of each round; those that did not count are lighter."""
    by_number = {each.round: each for each in story.rounds}
    most = max(each.members for each in by_number.values())

    def draw(plot: Plot, place: tuple[float, float], label: str, numbers: list[int]) -> None:
        rounds = [by_number[number] for number in numbers]
        members = sum(each.members for each in rounds) / len(rounds)
        counted = sum(each.contributors for each in rounds) / len(rounds)
        words = f"{label}: {counted:g} of {members:g} members counted"
        plot.bar(place, (0, members), "missed", words)
        plot.bar(place, (0, counted), "counted", words)

    return _per_round(story, Axis(0, most + 0.5, "", whole=True), "Members per round", draw)


def bytes_chart(story: Story) -> Element:
    """Payload bytes of each round, sent by all members that report it together."""
    sizes = {each.round: each.bytes for each in story.rounds}

    def draw(plot: Plot, place: tuple[float, float], label: str, numbers: list[int]) -> None:
        size = sum(sizes[number] for number in numbers) / len(numbers)
        plot.bar(place, (0, size), "counted", f"{label}: {si(size)}B")

    top = max(sizes.values()) * 1.1 or 1.0
    title = f"Bytes sent per round, by {'all' if len(story.peers) != 1 else story.peers[0]}"
    return _per_round(story, Axis(0, top, "", lambda value: f"{si(value)}B"), title, draw)


def seconds_chart(story: Story) -> Element | None:
    """The seconds of each round by phase, as the mean over its members."""
    table = by_round(story)
    if not table:
        return None

    def draw(plot: Plot, place: tuple[float, float], label: str, numbers: list[int]) -> None:
        rows, base = [table[number] for number in numbers if number in table], 0.0
        for phase, name in PHASES.items() if rows else ():
            height = sum(row[phase] for row in rows) / len(rows)
            if height:
                plot.bar(place, (base, base + height), phase, f"{label}: {name} {height:.2f} s")
            base += height

    top = max(sum(row.values()) for row in table.values()) * 1.05
    return _per_round(story, Axis(0, top, ""), "Seconds per round, by phase", draw)


def legend(keys: Sequence[Key]) -> Element:
    """What the colours mean."""
    items = [tag("span", tag("i", class_=f"key {css}"), name, class_="item") for css, name in keys]
    return tag("p", *items, class_="legend")


def si(value: float) -> str:
    """A number with an SI prefix: 1.2 M."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.3g} "


def _per_round(
    story: Story, y: Axis, title: str, draw: Callable[[Plot, tuple[float, float], str, list[int]], None]
) -> Element:
    """A bar per round, or per group of rounds where there are very many."""
    numbers = sorted(story.ledger.reports)
    size = -(-len(numbers) // MOST_BARS)
    groups = [numbers[start : start + size] for start in range(0, len(numbers), size)]
    x = Axis(numbers[0] - 0.5, numbers[-1] + 0.5, "round", whole=True)
    plot = Plot(x, y, title, width=310, height=220, left=54, top=HEAD)
    plot.axes()
    for group in groups:
        gap = 0.08 * len(group)
        label = f"round {group[0]}" if len(group) == 1 else f"rounds {group[0]} to {group[-1]}, mean"
        draw(plot, (group[0] - 0.5 + gap, group[-1] + 0.5 - gap), label, group)
    plot.marks((each.round, each.text, each.kind) for each in marks(story))
    return plot.root


def _round_numbers(plot: Plot, story: Story, numbers: range) -> None:
    """Draw a line at the end of each round, and its number above the rows."""
    ends = _ends(story, numbers)
    previous = plot.x.low
    for number, end in ends:
        plot.draw("line", "grid", x1=plot.at_x(end), x2=plot.at_x(end), y1=plot.top - 4, y2=plot.bottom)
        if plot.at_x(end) - plot.at_x(previous) > 18:
            plot.text((plot.at_x(previous) + plot.at_x(end)) / 2, plot.top - 5, str(number), "middle", "tick")
        previous = end


def _ends(story: Story, numbers: range) -> list[tuple[int, float]]:
    """The rounds with the time at which their first member had applied them."""
    told = [
        (number, [each["applied_at"] for each in story.ledger.reports[number].values() if "applied_at" in each])
        for number in numbers
        if number in story.ledger.reports
    ]
    return thin([(number, min(clocks) - story.began) for number, clocks in told if clocks])
