"""The snapshots that the page shows: the node as it is now, and new points of its curves.

All of it comes from the `NodeService`, so the page knows nothing that the API does not tell. Snapshots contain what
peers sent, so their size is bounded here, and numbers that JSON lacks (NaN, infinity) become null.
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
from shoal.protocol.base.errors import LocalError

LAST_ROUNDS = 15
MOST_PEERS = 256  # that the page shows
MOST_POINTS = 1440  # of a curve; an even number

Point = tuple[float, ...]  # (seconds since 1970, value, value, ...); NaN: unknown


class Recorder:
    """Keeps the curves of the runs, and makes snapshots for the page."""

    def __init__(self, service: NodeService) -> None:
        self._service = service
        self._curves: dict[str, Curve] = {}

    def look(self, now: float) -> dict[str, Any]:
        """A snapshot, with the points that are new since the last call; `now` in seconds since 1970."""
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
            "peer_count": len({each["peer"] for each in peers}),
            "more_peers": max(0, len(peers) - MOST_PEERS),
            "rounds": rounds,
            "curves": {run: _as_json(each) for run, each in news.items() if each.points},
            "families": {row["run"]: self._parts(row["run"]) for row in status["runs"] if row.get("experts")},
        }
        return {key: _plain(value) for key, value in seen.items()}

    def _last_rounds(self, run: str) -> list[Round]:
        """The last rounds of a run; none if the node is listed in it but has not entered it again, or cannot."""
        try:
            return self._service.rounds(run, LAST_ROUNDS)
        except LocalError:
            return []

    def _parts(self, family: str) -> list[ExpertRow]:
        try:
            return self._service.experts(family)
        except UnknownRun:
            return []

    def past(self) -> Answer:
        """All points of all curves, for a page that was just opened."""
        return {run: _as_json(CurveUpdate(True, curve.points)) for run, curve in self._curves.items()}


@dataclass(frozen=True, slots=True)
class CurveUpdate:
    """Points to add to a curve or, if `anew`, to replace all its points."""

    anew: bool
    points: list[Point]


class Curve:
    """The points of one run, oldest first; the whole run stays visible, ever more coarsely.

    When the curve is full its points are merged two by two, and from then on each new point covers twice the time. So a
    week needs no more memory than an hour, and a page that is loaded late still shows the beginning.
    """

    def __init__(self, most: int = MOST_POINTS) -> None:
        self.points: list[Point] = []
        self._most = most
        self._width = 1  # number of added points that make one kept point
        self._open: list[Point] = []  # added points, fewer than that

    def add(self, point: Point) -> CurveUpdate:
        """Add a point; returns the change of the kept points, which may be none."""
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
    """One point for several: the last time, and the mean of the known values in each column."""
    _, *columns = zip(*points, strict=True)
    return (points[-1][0], *map(_mean, columns))


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


def _point(now: float, row: Answer, peers: Sequence[Answer], rounds: Sequence[Answer]) -> Point:
    """(now, our loss, the mean loss of all members, our tokens per second, the swarm's, the validation loss)."""
    own = _number(row.get("loss"))
    others = [_number(peer.get("loss")) for peer in peers if peer["run"] == row["run"]]
    known = [loss for loss in (own, *others) if math.isfinite(loss)]
    swarm = fmean(known) if known else math.nan
    speeds = _number(row.get("tokens_per_second")), _swarm_speed(now, rounds)
    return (now, own, swarm, *speeds, _number(row.get("validation_loss")))


def _swarm_speed(now: float, rounds: Sequence[Answer]) -> float:
    """Committed tokens per second in the last round; falls while the next one is overdue."""
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
    """A copy of `value` for JSON, with null for NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
