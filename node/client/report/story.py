"""metrics.jsonl as values: the plan, the events, the rounds as all peers report them, and the phases of each round.

A play may have ended anywhere: every part may be missing, and the last line may be cut off.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from shoal.node.base.textfile import read_text, shown
from shoal.protocol.base.errors import LocalError

Line = dict[str, Any]  # of metrics.jsonl, see docs/metrics-jsonl.md

# -- rounds, as all peers report them ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Round:
    """A committed round: `seconds` since its last member was ready, payload `bytes` sent by all that report it."""

    round: int
    members: int
    contributors: int
    digest: str
    seconds: float
    bytes: int

    def as_json(self) -> dict[str, Any]:
        """The object of `--json`."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class Ledger:
    """The reports of all peers: each member reports each round, but a killed peer not the round in which it died.

    In what members must agree on (members, contributors, digest), reports are compared; what each has measured for
    itself (bytes) is added up.
    """

    reports: dict[int, dict[str, Line]] = field(default_factory=dict)  # by round and peer

    def add(self, peer: str, records: Iterable[Line]) -> list[Line]:
        """Take a peer's reports of committed rounds; returns those that are new, or differ from its earlier ones."""
        fresh = []
        for record in records:
            by = self.reports.setdefault(int(record["round"]), {})
            fresh += [record] if by.get(peer) != record else []
            by[peer] = record
        return fresh

    def rounds(self) -> list[Round]:
        """All committed rounds in order."""
        return [_merge(number, list(self.reports[number].values())) for number in sorted(self.reports)]

    def first_round_of(self, peer: str) -> int | None:
        """The first round in which a peer took part."""
        return min(
            (number for number, by in self.reports.items() if peer in by and by[peer]["took_part"]), default=None
        )

    def disputed(self) -> list[int]:
        """Rounds for which peers report different digests: agreement is broken. Replicas agree on none."""
        digests = {
            number: {each["digest"] for each in by.values() if not is_replica(each)}
            for number, by in self.reports.items()
        }
        return sorted(number for number, seen in digests.items() if len(seen) > 1)

    def exchanges(self) -> int:
        """How many exchanges of replicas there were; both partners report one, or one of them if the other died."""
        met = [sum(bool(each.get("partner")) for each in by.values()) for by in self.reports.values()]
        return sum((reports + 1) // 2 for reports in met)

    def bytes_per_parameter_per_round(self, parameters: int) -> float:
        """Payload bytes that one member sends in one round for one parameter, averaged over all reports."""
        sent = [int(each["bytes"]) for by in self.reports.values() for each in by.values() if each["took_part"]]
        return sum(sent) / len(sent) / parameters if sent and parameters else 0.0


def is_replica(report: Line) -> bool:
    """Whether a round's report is of a replica: with a partner, or with a reason why there was none."""
    return bool(report.get("partner") or report.get("lapse"))


def _merge(number: int, reports: list[Line]) -> Round:
    first = reports[0]
    return Round(
        number,
        int(first["members"]),
        int(first["contributors"]),
        str(first["digest"]),
        round(min((float(each["seconds"]) for each in reports if each["took_part"]), default=0.0), 3),
        sum(int(each["bytes"]) for each in reports),
    )


# -- one play -----------------------------------------------------------------------------------------------------


NEEDED = {  # the fields that every line of a kind has, and that the page shows
    "event": ("event", "text"),
    "round": ("peer", "round", "members", "contributors", "digest", "bytes", "seconds", "took_part"),
}
NEEDED_OF_EVENTS = {"up": ("peer", "id"), "reference": ("reference", "loss", "curve")}


@dataclass(frozen=True, slots=True)
class Happening:
    """An event: `at` seconds after the beginning."""

    at: float
    kind: str
    text: str
    fields: Line


@dataclass(frozen=True, slots=True)
class Reference:
    """One of the trainings of --baseline."""

    kind: str  # alone, joined
    loss: float  # on the validation text
    curve: tuple[tuple[float, float], ...]  # (tokens, training loss)


@dataclass(slots=True)
class Story:
    """One `shoal up`, read from its folder."""

    folder: Path
    began: float = 0.0  # the time of the first line, in seconds since 1970
    ended: float = 0.0  # the time of the last one
    events: list[Happening] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    result: Line = field(default_factory=dict)  # empty if there is no verdict

    @property
    def plan(self) -> Line:
        """What was planned: names, rounds, faults."""
        return next((each.fields for each in self.events if each.kind == "plan"), {})

    @property
    def resumed_from(self) -> int:
        """The round of an earlier play from which this one went on; 0 if it began afresh."""
        return int(self.plan.get("resumed_from") or 0)

    @property
    def wanted(self) -> int:
        """How many rounds were planned; 0 if unknown."""
        return int(self.plan.get("rounds", self.resumed_from)) - self.resumed_from

    @property
    def rounds(self) -> list[Round]:
        """The committed rounds, in order."""
        return self.ledger.rounds()

    @property
    def peers(self) -> list[str]:
        """All peers that were started, in the order of their starts."""
        return list(dict.fromkeys(each.fields["peer"] for each in self.events if each.kind == "up"))

    @property
    def names(self) -> dict[str, str]:
        """The peers' names, by peer id."""
        return {each.fields["id"]: each.fields["peer"] for each in self.events if each.kind == "up"}

    def first(self, kind: str) -> Happening | None:
        """The first event of a kind."""
        return next((each for each in self.events if each.kind == kind), None)

    def reports(self, peer: str) -> list[Line]:
        """A peer's reports of the rounds that it has applied, in order."""
        by_round = self.ledger.reports
        return [by_round[number][peer] for number in sorted(by_round) if peer in by_round[number]]

    def samples_after(self, number: int) -> int | None:
        """All members' tokens behind the state after a round; None if unknown."""
        known = [int(each["samples"]) for each in self.ledger.reports.get(number, {}).values() if "samples" in each]
        return max(known, default=None)

    def reference(self, kind: str) -> Reference | None:
        """The reference of a kind with the lowest finite loss; None if there is none."""
        made = [each.fields for each in self.events if each.kind == "reference"]
        found = [
            Reference(kind, float(each["loss"]), _finite(each["curve"]))
            for each in made
            if each["reference"] == kind and math.isfinite(each["loss"])
        ]
        return min(found, key=lambda each: each.loss, default=None)


def read_story(folder: Path) -> Story:
    """Read metrics.jsonl in `folder`; LocalError if there is none, or a line of it is damaged."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        words = "give the folder that `shoal up` named, or a node's home"
        raise LocalError(f"{shown(folder)} holds no metrics.jsonl: {words}", code="no-report")
    lines = read_text(path).split("\n")
    story = Story(folder)
    for number, each in enumerate(lines, start=1):
        if not each.strip():
            continue
        try:
            _take(story, json.loads(each))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if not any(rest.strip() for rest in lines[number:]):  # the last line, which was cut off
                break
            why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise LocalError(
                f"line {number} of {shown(path)} is not what `shoal up` writes: {why}", code="no-report"
            ) from error
    return story


def _finite(curve: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    return tuple((float(x), float(y)) for x, y in curve if math.isfinite(y))


def _take(story: Story, line: Line) -> None:
    at, kind = float(line["time"]), str(line["kind"])
    for needed in (*NEEDED.get(kind, ()), *(NEEDED_OF_EVENTS.get(str(line["event"]), ()) if kind == "event" else ())):
        line[needed]
    story.began, story.ended = story.began or at, at
    match kind:
        case "event":
            story.events.append(Happening(at - story.began, line["event"], line["text"], line))
        case "round":
            story.ledger.add(line["peer"], [line])
        case "result":
            story.result = line


# -- phases of rounds ----------------------------------------------------------------------------------------------


PHASES = {  # in the order of a round, with their names on the page
    "syncing": "state download",
    "training": "training",
    "matching": "waiting for all",
    "reducing": "scatter and gather",
    "deciding": "decision",
    "applying": "apply",
    "unreported": "not reported: the peer was killed",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """One phase of one round at one peer; seconds since the play began."""

    peer: str
    round: int
    phase: str
    start: float
    stop: float


def bars(story: Story, numbers: range) -> list[Bar]:
    """All bars of these rounds, in order of peer and time.

    A peer reports how long each phase was and when the last one ended, so they are laid out backwards from there.
    """
    found = []
    for peer in story.peers:
        for report in story.reports(peer):
            if report["round"] in numbers:
                found += _bars_of(story, peer, report)
        found += _last_bar(story, peer, found)
    return found


def seconds(report: Line) -> dict[str, float]:
    """How long a peer was in each phase of a round."""
    total: dict[str, float] = defaultdict(float)
    for span in report.get("phases", []):
        total[span["phase"]] += span["seconds"]
    return dict(total)


def by_round(story: Story) -> dict[int, dict[str, float]]:
    """For each round the mean seconds in each phase, over the members that report phases; without rounds of none."""
    table = {}
    for number, by in sorted(story.ledger.reports.items()):
        told = [seconds(each) for each in by.values() if each["took_part"] and each.get("phases")]
        if told:
            table[number] = {phase: fmean(each.get(phase, 0.0) for each in told) for phase in PHASES}
    return table


def usual(table: dict[int, dict[str, float]]) -> dict[str, float]:
    """The median of each phase over all rounds."""
    return {phase: median(row[phase] for row in table.values()) for phase in PHASES} if table else {}


def _last_bar(story: Story, peer: str, bars: list[Bar]) -> list[Bar]:
    """The time of a killed peer after its last report, with unknown phases."""
    killed = story.first("killed")
    if killed is None or killed.fields["peer"] != peer or not bars or bars[-1].peer != peer:
        return []
    start = bars[-1].stop
    return [Bar(peer, bars[-1].round + 1, "unreported", start, killed.at)] if killed.at > start else []


def _bars_of(story: Story, peer: str, report: Line) -> list[Bar]:
    if not report.get("phases"):
        return []
    stop, found = float(report["applied_at"]) - story.began, []
    for span in reversed(report["phases"]):
        start = stop - span["seconds"]
        found.append(Bar(peer, int(report["round"]), span["phase"], start, stop))
        stop = start
    return found[::-1]
