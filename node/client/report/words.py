"""The page's sentences: the outcome, the summary, the events, and unusual rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shoal.node.client.report.story import PHASES, Line, Round, Story, by_round, seconds, usual

Outcome = Literal["good", "bad"]
SLOW, SLOW_BY = 1.5, 0.5  # a slow round takes so many times the usual time, and so many seconds more
TOLD_APART = {"up", "reference", "ended"}  # events that other parts of the page show
WAITED_SHARE = 0.25  # of a usual round: longer waits in matching are mentioned
MOST_TOLD = 40  # unusual rounds that are mentioned


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence about something that happened `at` seconds after the beginning."""

    at: float
    text: str
    kind: str = ""  # kill, join, slow


def outcome(story: Story) -> tuple[Outcome, str]:
    """Whether it went well, and a sentence for the top of the page."""
    if not story.result:
        ended = story.first("ended")
        why = ended.text if ended is not None else "it has not ended yet, or stopped without a word"
        return "bad", f"The run came to no verdict: {why.rstrip('.')}."
    if story.result["exit_status"] == 0:
        return "good", "All went as it should."
    return "bad", "Something is not as it must be: see below."


def summary(story: Story) -> list[str]:
    """The result, line by line; without a verdict, how far the run had come."""
    if story.result:
        return list(story.result["words"])
    took, after = clock(story.ended - story.began), f" after round {story.resumed_from}" if story.resumed_from else ""
    lines = [f"{len(story.rounds)} of {story.wanted} rounds{after} were committed before it ended, after {took}."]
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
    """A sentence about where the time of a usual round goes."""
    typical = usual(by_round(story))
    total = sum(typical.values())
    if not total:
        return ""
    parts = [f"{PHASES[phase]} {time:.2f} s" for phase, time in typical.items() if time >= 0.005]
    return f"A usual round takes {total:.2f} s: {', '.join(parts)} (medians; each peer counts its own time)."


def why_slow(story: Story, each: Round, row: dict[str, float], typical: dict[str, float]) -> str:
    """Which phase of a slow round took longer than usual, and which peer was waited for."""
    phase = max(row, key=lambda name: row[name] - typical[name])
    by = story.ledger.reports[each.round]
    said = f"{PHASES[phase]} took {row[phase]:.1f} s instead of {typical[phase]:.1f} s"
    if phase == "training":
        told = _seconds_in(phase, by)
        slowest = max(told, key=lambda peer: told[peer])
        if _is_downloading(by[slowest]):
            return f"{said}; {slowest} was still downloading the state"
        loading = ", which includes loading torch and the text" if each.round == story.resumed_from + 1 else ""
        return f"{said}; the slowest was {slowest} with {told[slowest]:.1f} s{loading}"
    if phase == "matching":
        late = last_to_come(by)
        doing = "still downloading the state" if _is_downloading(by[late]) else "the last to finish training"
        return f"{said}; {late} was {doing}"
    if (victim := _victim(story, each.round)) is not None:
        return f"{said}: {victim} died in it, and the others had to notice and to take over its chunks"
    return f"{said}{_waited_for(story, by)}"


def last_to_come(by: dict[str, Line]) -> str:
    """The peer for which the others waited in matching: the one that was there for the shortest time."""
    told = _seconds_in("matching", by)
    return min(told, key=lambda peer: told[peer])


def clock(time: float) -> str:
    """Seconds as minutes and seconds."""
    return f"{time:.1f} s" if time < 60 else f"{int(time // 60)} min {int(time % 60):02d} s"


def _unusual(story: Story) -> list[Sentence]:
    """Sentences about unusual rounds; about the longest ones if there are too many."""
    table = by_round(story)
    typical, found = usual(table), []
    for each in story.rounds:
        row = table.get(each.round, {})
        if parts := [*_oddities(each), *_delays(story, each, row, typical)]:
            took = sum(row.values())
            text = f"Round {each.round} was committed{f' after {took:.1f} s' if took else ''}: {'; '.join(parts)}."
            found.append((took, Sentence(_committed_at(story, each.round), text, "slow")))
    return [sentence for _, sentence in sorted(found, key=lambda told: -told[0])[:MOST_TOLD]]


def _oddities(each: Round) -> list[str]:
    parts = []
    if each.contributors < each.members:
        parts.append(f"{each.contributors} of its {each.members} members counted in every chunk")
    return parts


def _delays(story: Story, each: Round, row: dict[str, float], typical: dict[str, float]) -> list[str]:
    took, total = sum(row.values()), sum(typical.values())
    if took > SLOW * total and took > total + SLOW_BY:
        return [why_slow(story, each, row, typical)]
    by = story.ledger.reports[each.round]
    longest = max(_seconds_in("matching", by).values(), default=0.0)
    if row and longest > max(WAITED_SHARE * total, SLOW_BY):
        late = last_to_come(by)
        doing = ", which was still downloading the state" if _is_downloading(by[late]) else " to finish training"
        return [f"up to {longest:.1f} s of it went in waiting for {late}{doing}"]
    return []


def _committed_at(story: Story, number: int) -> float:
    """When the first member had applied a round, in seconds since the beginning."""
    reports = story.ledger.reports[number].values()
    clocks = [float(report["applied_at"]) for report in reports if report["took_part"] and "applied_at" in report]
    return min(clocks) - story.began if clocks else 0.0


def _end(story: Story) -> list[Sentence]:
    """The last sentence: how it ended."""
    at = story.ended - story.began
    if not story.result:
        return [Sentence(at, outcome(story)[1])]
    return [Sentence(at, f"All was measured and compared; exit status {story.result['exit_status']}.")]


def _victim(story: Story, number: int) -> str | None:
    killed = story.first("killed")
    return str(killed.fields["peer"]) if killed is not None and story.plan.get("kill_at") == number else None


def _seconds_in(phase: str, by: dict[str, Line]) -> dict[str, float]:
    """How long each peer that took part in a round, and reports its phases, was in this one."""
    told = {peer: seconds(report) for peer, report in by.items() if report["took_part"] and report.get("phases")}
    return {peer: spent.get(phase, 0.0) for peer, spent in told.items()}


def _is_downloading(report: Line) -> bool:
    """Whether downloading the state was a peer's longest phase in a round."""
    spent = seconds(report)
    return max(spent, key=lambda phase: spent[phase]) == "syncing"


def _waited_for(story: Story, by: dict[str, Line]) -> str:
    """The peers that were waited for longest, by all peers' reports."""
    waited: dict[str, float] = {}
    for report in by.values():
        for peer, time in report.get("waited_for", {}).items():
            name = story.names.get(peer, peer[-6:])
            waited[name] = max(waited.get(name, 0.0), float(time))
    longest = sorted(waited.items(), key=lambda item: -item[1])[:3]
    told = [f"{name} (up to {time:.1f} s)" for name, time in longest if time >= SLOW_BY]
    return f"; others waited for {', '.join(told)}" if told else ""


def _sentence(text: str) -> str:
    whole = text[:1].upper() + text[1:] if not text.startswith("peer-") else text
    return whole if whole.endswith((".", "!", "?")) else f"{whole}."
