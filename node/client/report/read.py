"""metrics.jsonl as values: what was planned, what happened, what each peer measured in each round.

A run may have ended anywhere: every part may be missing, and the last line may be cut off.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.node.base.textfile import read_text, shown
from shoal.node.client.report.ledger import Ledger, Round
from shoal.protocol.base.errors import LocalError

Line = dict[str, Any]
NEEDED = {  # the fields of each kind of line that are shown, and always there
    "event": ("event", "text"),
    "round": ("peer", "round", "attempt", "members", "contributors", "digest", "bytes", "seconds", "took_part"),
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
    began: float = 0.0  # the clock at the first line
    ended: float = 0.0
    events: list[Happening] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    result: Line = field(default_factory=dict)  # empty: there is no verdict

    @property
    def plan(self) -> Line:
        """What was to be done: names, rounds, faults."""
        return next((each.fields for each in self.events if each.kind == "plan"), {})

    @property
    def resumed_from(self) -> int:
        """The round after which an earlier play was continued; 0 if this one began afresh."""
        return int(self.plan.get("resumed_from") or 0)

    @property
    def wanted(self) -> int:
        """How many rounds it was to commit; 0 if unknown."""
        return int(self.plan.get("rounds", self.resumed_from)) - self.resumed_from

    @property
    def rounds(self) -> list[Round]:
        """The committed rounds, in order."""
        return self.ledger.rounds()

    @property
    def peers(self) -> list[str]:
        """All peers that were started, in that order."""
        return list(dict.fromkeys(each.fields["peer"] for each in self.events if each.kind == "up"))

    @property
    def names(self) -> dict[str, str]:
        """What each peer id is called here."""
        return {each.fields["id"]: each.fields["peer"] for each in self.events if each.kind == "up"}

    def first(self, kind: str) -> Happening | None:
        """The first event of a kind."""
        return next((each for each in self.events if each.kind == kind), None)

    def reports(self, peer: str) -> list[Line]:
        """What a peer says of the rounds that it has applied, in order."""
        by_round = self.ledger.reports
        return [by_round[number][peer] for number in sorted(by_round) if peer in by_round[number]]

    def samples_after(self, number: int) -> int | None:
        """Tokens behind the state after a round, None if unknown."""
        known = [int(each["samples"]) for each in self.ledger.reports.get(number, {}).values() if "samples" in each]
        return max(known, default=None)

    def reference(self, kind: str) -> Reference | None:
        """The best of the references of a kind; a diverged one (NaN, infinity) is not among them."""
        made = [each.fields for each in self.events if each.kind == "reference"]
        found = [
            Reference(kind, float(each["loss"]), _finite(each["curve"]))
            for each in made
            if each["reference"] == kind and math.isfinite(each["loss"])
        ]
        return min(found, key=lambda each: each.loss, default=None)


def read_story(folder: Path) -> Story:
    """The story in `folder`; LocalError if it holds none."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        raise LocalError(f"{shown(folder)} holds no metrics.jsonl: give the folder that `shoal up` named")
    lines = read_text(path).split("\n")
    story = Story(folder)
    for number, each in enumerate(lines, start=1):
        if not each.strip():
            continue
        try:
            _take(story, json.loads(each))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if not any(rest.strip() for rest in lines[number:]):  # it was being written when everything ended
                break
            why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise LocalError(f"line {number} of {shown(path)} is not what `shoal up` writes: {why}") from error
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
