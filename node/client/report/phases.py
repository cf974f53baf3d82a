"""The phases of rounds, as the peers report them: spans on the clock, and their usual lengths.

A peer reports how long each span was and when the last one ended, so spans are laid out backwards from there.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean, median

from shoal.node.client.report.read import Line, Story

PHASES = {  # in the order of a round; what people call them
    "syncing": "state download",
    "training": "training",
    "matching": "matchmaking",
    "reducing": "scatter and gather",
    "preparing": "prepare and commit",
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
    """All bars of these rounds, by peer and time."""
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
    """Mean seconds in each phase of each round, over those that took part; a round of which nobody told is absent."""
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
    """The time of a killed peer after its last report, of which nothing is known."""
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
