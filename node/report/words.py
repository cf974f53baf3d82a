"""What happened, in sentences: the outcome, the events, and the rounds that were not like the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shoal.node.report.phases import PHASES, by_round, seconds, usual
from shoal.node.report.read import Line, Story
from shoal.node.up.records import Round

Outcome = Literal["good", "bad"]
SLOW, SLOW_BY = 1.5, 0.5  # times the usual time, and seconds, from which a round took long
TOLD_APART = {"up", "reference", "ended"}  # events that are told elsewhere on the page, or by the outcome
WAITED = 0.2  # seconds that are worth a word


@dataclass(frozen=True, slots=True)
class Sentence:
    """What happened `at` seconds after the beginning."""

    at: float
    text: str
    kind: str = ""  # kill, join, slow


def outcome(story: Story) -> tuple[Outcome, str]:
    """Whether it went well, and a sentence for the top of the page."""
    if not story.result:
        ended = story.first("ended")
        why = ended.text if ended is not None else "it stopped without a word"
        return "bad", f"The run came to no verdict: {why.rstrip('.')}."
    if story.result["exit_status"] == 0:
        return "good", "All went as it should."
    return "bad", "Something is not as it must be: see below."


def summary(story: Story) -> list[str]:
    """What came out; without a verdict, how far the run had come."""
    if story.result:
        return list(story.result["words"])
    done, wanted = len(story.rounds), story.plan.get("rounds", 0)
    lines = [f"{done} of {wanted} rounds were committed before it ended, after {clock(story.ended - story.began)}."]
    if disputed := story.ledger.disputed():
        lines.append(f"Peers report different digests for round {', '.join(map(str, disputed))}.")
    return lines


def happenings(story: Story) -> list[Sentence]:
    """A sentence per event and per unusual round, in the order of time."""
    kinds = {"killed": "kill", "newcomer": "join", "synced": "join"}
    told = [
        Sentence(each.at, _sentence(each.text), kinds.get(each.kind, ""))
        for each in story.events
        if each.kind not in TOLD_APART
    ]
    return sorted([*told, *_unusual(story), *_end(story)], key=lambda each: each.at)


def usual_round(story: Story) -> str:
    """Where the time of a usual round goes."""
    typical = usual(by_round(story))
    total = sum(typical.values())
    if not total:
        return ""
    parts = [f"{PHASES[phase]} {time:.2f} s" for phase, time in typical.items() if time >= 0.005]
    return f"A usual round takes {total:.2f} s: {', '.join(parts)} (medians; each peer counts its own time)."


def why_slow(story: Story, each: Round, row: dict[str, float], typical: dict[str, float]) -> str:
    """Which phase took longer than usual, and who was waited for."""
    excess = {phase: row[phase] - typical[phase] for phase in row}
    phase = max(excess, key=lambda name: excess[name])
    by = story.ledger.reports[each.round]
    told = {peer: seconds(report).get(phase, 0.0) for peer, report in by.items() if report["took_part"]}
    said = f"mostly for {PHASES[phase]}, {row[phase]:.1f} s instead of {typical[phase]:.1f} s"
    if phase == "training":
        slowest = max(told, key=lambda peer: told[peer])
        loading = ", which includes loading torch and the text" if each.round == 1 else ""
        return f"{said}; the slowest was {slowest} with {told[slowest]:.1f} s{loading}"
    if (victim := _victim(story, each.round)) and phase in ("matching", "reducing", "preparing"):
        return f"{said}: {victim} died in it, and the others had to notice and take over its chunks"
    if phase == "matching":
        return f"{said}: the others waited for {_last_to_train(by)}, which was last to finish training"
    waited = _waited_for(story, by)
    return f"{said}; {waited}" if waited else said


def clock(time: float) -> str:
    """Seconds as minutes and seconds."""
    return f"{time:.1f} s" if time < 60 else f"{int(time // 60)} min {int(time % 60):02d} s"


def _unusual(story: Story) -> list[Sentence]:
    table = by_round(story)
    typical, found = usual(table), []
    total = sum(typical.values())
    for each in story.rounds:
        by = story.ledger.reports[each.round]
        clocks = [report["applied_at"] for report in by.values() if "applied_at" in report and report["took_part"]]
        at = min(clocks) - story.began if clocks else 0.0
        parts = _oddities(each)
        row = table.get(each.round)
        took = sum(row.values()) if row else 0.0
        if row and took > SLOW * total and took > total + SLOW_BY:
            parts.append(f"it took long, {took:.1f} s, {why_slow(story, each, row, typical)}")
        if parts:
            found.append(Sentence(at, f"Round {each.round} was committed: {'; '.join(parts)}.", "slow"))
    return found


def _oddities(each: Round) -> list[str]:
    parts = []
    if each.contributors < each.members:
        parts.append(f"{each.contributors} of its {each.members} members counted in every chunk")
    if each.attempt > 1:
        parts.append(f"it took {each.attempt} attempts")
    return parts


def _end(story: Story) -> list[Sentence]:
    """The last sentence: how it ended."""
    at = story.ended - story.began
    if not story.result:
        return [Sentence(at, outcome(story)[1])]
    return [Sentence(at, f"After {clock(at)} all was measured, with exit status {story.result['exit_status']}.")]


def _victim(story: Story, number: int) -> str | None:
    killed = story.first("killed")
    return str(killed.fields["peer"]) if killed is not None and story.plan.get("kill_at") == number else None


def _last_to_train(by: dict[str, Line]) -> str:
    """Whose matchmaking began last: it waited least itself."""
    told = {peer: seconds(report).get("matching", 0.0) for peer, report in by.items() if report["took_part"]}
    return min(told, key=lambda peer: told[peer])


def _waited_for(story: Story, by: dict[str, Line]) -> str:
    """Who was waited for longest, as the peers themselves say."""
    waited: dict[str, float] = {}
    for report in by.values():
        for peer, time in report.get("waited_for", {}).items():
            name = story.names.get(peer, peer[-6:])
            waited[name] = max(waited.get(name, 0.0), float(time))
    longest = sorted(waited.items(), key=lambda item: -item[1])[:3]
    told = [f"{name} (up to {time:.1f} s)" for name, time in longest if time >= WAITED]
    return f"waited for {', '.join(told)}" if told else ""


def _sentence(text: str) -> str:
    whole = text[:1].upper() + text[1:] if not text.startswith("peer-") else text
    return whole if whole.endswith((".", "!", "?")) else f"{whole}."
