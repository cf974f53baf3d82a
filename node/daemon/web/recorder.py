"""What the page shows, once a second: the node as it is, and the points by which its curves grow.

Everything is asked of the `NodeService`, so the page knows nothing that the API does not say. What peers sent is in it:
it is bounded here, and numbers that JSON does not have (NaN, infinity) become null.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from shoal.node.api.answers import Answer, ExpertRow, Round
from shoal.node.api.errors import UnknownRun
from shoal.node.api.service import NodeService
from shoal.node.api.status import advice, headline

LAST_ROUNDS = 15
MOST_PEERS = 256  # shown
MOST_POINTS = 1440  # of a curve; even

Point = tuple[float, ...]  # (seconds since 1970, value, value, ...); NaN: not known


class Recorder:
    """Keeps the curves of the runs, and puts together what a page needs to know."""

    def __init__(self, service: NodeService) -> None:
        self._service = service
        self._curves: dict[str, Curve] = {}

    def look(self, now: float) -> dict[str, Any]:
        """The node now, and what is new of its curves since the last look; `now` in seconds since 1970."""
        status, peers = self._service.status(), self._service.peers()
        runs = [run["run"] for run in status["runs"]]
        rounds = {run: self._last_rounds(run) for run in runs}
        self._curves = {run: self._curves.get(run, Curve()) for run in runs}
        news = {}
        for row in status["runs"]:
            point = _point(now, row, peers, rounds[row["run"]])
            if any(map(math.isfinite, point[1:])):
                news[row["run"]] = self._curves[row["run"]].add(point)
        seen: dict[str, Any] = {
            "status": {**status, "headline": headline(status), "advice": advice(status)},
            "peers": peers[:MOST_PEERS],
            "more_peers": max(0, len(peers) - MOST_PEERS),
            "rounds": rounds,
            "curves": {run: _as_json(each) for run, each in news.items() if each.points},
            "families": {row["run"]: self._parts(row["run"]) for row in status["runs"] if row.get("experts")},
        }
        return {key: _plain(value) for key, value in seen.items()}

    def _last_rounds(self, run: str) -> list[Round]:
        """None of a run that is shown although the node is not in it: one that it could not enter again."""
        try:
            return self._service.rounds(run, LAST_ROUNDS)
        except UnknownRun:
            return []

    def _parts(self, family: str) -> list[ExpertRow]:
        try:
            return self._service.experts(family)
        except UnknownRun:
            return []

    def past(self) -> Answer:
        """All points of all curves, for somebody who has just come."""
        return {run: _as_json(CurveUpdate(True, curve.points)) for run, curve in self._curves.items()}


@dataclass(frozen=True, slots=True)
class CurveUpdate:
    """Points that a reader lacks; `anew` says that they replace all that it has."""

    anew: bool
    points: list[Point]


class Curve:
    """The points of one run, oldest first; the whole run stays visible, ever more coarsely.

    When it is full its points are merged two by two, and from then on each new one stands for twice as many seconds.
    So a week needs no more memory than an hour, and a page that is loaded late still shows the beginning.
    """

    def __init__(self, most: int = MOST_POINTS) -> None:
        self.points: list[Point] = []
        self._most = most
        self._width = 1  # how many added points one kept point stands for
        self._open: list[Point] = []  # fewer than that, not yet a point

    def add(self, point: Point) -> CurveUpdate:
        """Keep `point`; what is new by it, which may be nothing."""
        self._open.append(point)
        if len(self._open) < self._width:
            return CurveUpdate(False, [])
        self.points.append(_merged(self._open))
        self._open = []
        if len(self.points) < self._most:
            return CurveUpdate(False, self.points[-1:])
        self.points = [_merged(pair) for pair in zip(self.points[::2], self.points[1::2], strict=True)]
        self._width *= 2
        return CurveUpdate(True, self.points)


def _merged(points: Sequence[Point]) -> Point:
    """The last time, and the mean of what is known of each value."""
    _, *columns = zip(*points, strict=True)
    return (points[-1][0], *map(_mean, columns))


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


def _point(now: float, row: Answer, peers: Sequence[Answer], rounds: Sequence[Answer]) -> Point:
    """(now, our loss, the mean loss of all members, our tokens per second, the swarm's)."""
    own = _number(row.get("loss"))
    others = [_number(peer.get("loss")) for peer in peers if peer["run"] == row["run"]]
    known = [loss for loss in (own, *others) if math.isfinite(loss)]
    swarm = fmean(known) if known else math.nan
    return (now, own, swarm, _number(row.get("tokens_per_second")), _swarm_speed(now, rounds))


def _swarm_speed(now: float, rounds: Sequence[Answer]) -> float:
    """Committed tokens per second: of the last round, or less while the next one is long in coming."""
    if len(rounds) < 2:
        return math.nan
    before, last = rounds[-2:]
    seconds = max(last["applied_at"] - before["applied_at"], now - last["applied_at"])
    return float(last["round_samples"] / seconds) if seconds > 0 else math.nan


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _as_json(news: CurveUpdate) -> Answer:
    return {"anew": news.anew, "points": _plain(news.points)}


def _plain(value: Any) -> Any:
    """`value` with null for what is no number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
