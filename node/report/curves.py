"""What is drawn in the loss chart, on the page and in loss.png alike.

A point per round: a peer's mean training loss in it, over the tokens that all members together have trained on by
then. The swarm's is the mean over its members, weighted by tokens. The references have curves of their own. Validation
losses are single points, at the beginning and at the end. A loss that is no number (NaN, infinity) is not drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from shoal.node.report.read import Story

MOST = 500  # points of a curve: more cannot be told apart

Kind = Literal["peer", "swarm", "alone", "joined"]
Point = tuple[float, float]  # tokens, nats per byte
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Curve:
    """Training loss over tokens."""

    name: str
    kind: Kind
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened, at a round."""

    text: str
    kind: Literal["kill", "join"]
    round: int
    at: float  # seconds


def loss_curves(story: Story) -> list[Curve]:
    """The peers' curves, then the swarm's, then those of the references; none without points."""
    curves = [Curve(peer, "peer", _peer_points(story, peer)) for peer in story.peers]
    curves.append(Curve("the swarm", "swarm", _swarm_points(story)))
    for kind in ("alone", "joined"):
        if (reference := story.reference(kind)) is not None:
            name = "one peer alone" if kind == "alone" else "one big machine"
            curves.append(Curve(name, kind, reference.curve))
    return [Curve(each.name, each.kind, tuple(thin(each.points))) for each in curves if each.points]


def validation_points(story: Story) -> list[tuple[str, Kind, Point]]:
    """What each validation loss is called, whose it is, and where it lies."""
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
