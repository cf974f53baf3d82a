"""What a node has on its disk of one run, as a story: rounds.jsonl, the newest checkpoint, and the log of the daemon.

That is less than what `shoal up` leaves: the last rounds only, as this one node saw them, without losses and without a
verdict. `lacks` says what is missing.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median

from shoal.node.api.answers import Answer, Timeline
from shoal.node.base.home import Home
from shoal.node.client.cli.round_lines import BEFORE, name, slowest
from shoal.node.client.report.story import PHASES, Happening, Line, Story
from shoal.node.client.report.words import MOST_TOLD, SLOW, SLOW_BY, Sentence
from shoal.node.manifest.manifest import decode_manifest
from shoal.node.peers.remembered import recall_run
from shoal.node.run.timelines import NAME as ROUNDS
from shoal.node.run.timelines import kept_in
from shoal.node.training.checkpoint.about import About
from shoal.node.training.checkpoint.scan import CHECKPOINTS, newest_first
from shoal.protocol.base.errors import LocalError, RemoteError

LEVELS = logging.getLevelNamesMapping()
MOST_LOGGED = 100  # warnings of the log: the last ones are told
ONCE_A_ROUND = ("lost", "left", "lapsed", "blamed", "directed", "undone")  # events of a round that are always told
ALWAYS_LACKS = (
    "There are no losses: a node keeps none on its disk. Its page shows them while it runs, and /metrics gives them to "
    "Prometheus.",
    "The other members' views of the rounds are on their own disks.",
)


@dataclass(slots=True)
class NodeStory:
    """A run at one node. `story` has its committed rounds, `told` what else happened, in order of time."""

    run: str
    name: str  # of the run; empty if nothing here says it
    story: Story
    peer: str = ""
    told: list[Sentence] = field(default_factory=list)
    checkpoint: About | None = None
    lacks: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The run's name, and the beginning of its id."""
        return f"{self.name} ({self.run[:8]})" if self.name else f"run {self.run[:8]}"


def read_run(home: Home, run: str) -> NodeStory:
    """What is on the disk of a run; LocalError if no round of it is."""
    folder = home.run_folder(run)
    checkpoint = next((each.about for each in newest_first(folder / CHECKPOINTS) if each.about is not None), None)
    found = NodeStory(run, _name(home, run, checkpoint), Story(folder), checkpoint=checkpoint)
    timelines = list(_timelines(folder, found.lacks))
    if not timelines:
        raise LocalError(
            f"{found.title} has no rounds in {folder / ROUNDS}: none has ended on this node yet", code="no-report"
        )
    _take(found, timelines)
    found.told += _logged(home, found)
    found.told.sort(key=lambda each: each.at)
    found.lacks += [*_rounds_that_lack(timelines), *ALWAYS_LACKS]
    if checkpoint is None:
        found.lacks.append("There is no checkpoint, which would say on how many tokens the state was trained.")
    return found


def _name(home: Home, run: str, checkpoint: About | None) -> str:
    """The run's name, by the record of a run that the node is in, or by a checkpoint; empty if neither is here."""
    try:
        return decode_manifest(recall_run(home, run).genesis.manifest).name
    except (LocalError, RemoteError):
        return checkpoint.name if checkpoint is not None else ""


# -- rounds -------------------------------------------------------------------------------------------------


def _timelines(folder: Path, lacks: list[str]) -> Iterator[Timeline]:
    """The rounds that are over, oldest first; what cannot be read is left out, and counted in `lacks`."""
    damaged = 0
    for _, line in kept_in(folder):
        try:
            timeline: Timeline = json.loads(line)
            name(timeline["peer"])
            _record(timeline)
            _oddities(timeline, 0.0)
        except (ValueError, LookupError, TypeError, AttributeError):
            damaged += 1
        else:
            if timeline["ended"] is not None:
                yield timeline
    if damaged:
        count = "1 line" if damaged == 1 else f"{damaged} lines"
        lacks.append(f"Left out: {count} of {ROUNDS} that no node has written so.")


def _take(found: NodeStory, timelines: list[Timeline]) -> None:
    """Put the rounds into the story: those that were committed as records, the others, and the slow ones, in words."""
    story, first = found.story, timelines[0]
    found.peer = first["peer"]
    story.began = first["ready_at"] + min(first["began"] or 0.0, 0.0)
    story.ended = max(_end(each) for each in timelines)
    story.events.append(Happening(0.0, "plan", "", {"run": found.title}))
    story.events.append(Happening(0.0, "up", "", {"peer": name(found.peer), "id": found.peer}))
    story.ledger.add(name(found.peer), (_record(each) for each in timelines if each["committed"] is not None))
    usual = median(_length(each) for each in timelines)
    odd = [(_length(each), words, each) for each in timelines if (words := _oddities(each, usual))]
    for _, words, each in sorted(odd, key=lambda row: -row[0])[:MOST_TOLD]:
        found.told.append(Sentence(_end(each) - story.began, f"Round {each['round']} {words}", "slow"))


def _record(timeline: Timeline) -> Line:
    """A round as `shoal up` records it, without what a timeline does not have."""
    met = any(each["what"] == "exchanged" for each in timeline["events"])
    members = 2 if met else timeline["size"]  # 0: this node only followed, and was told the result
    sent = sum(flow["bytes"] for flow in timeline["traffic"] if flow["way"] == "sent")
    spans = [{"phase": each["phase"], "seconds": each["to"] - each["from"]} for each in timeline["phases"]]
    listed = timeline["members"]
    return {
        "round": timeline["round"],
        "members": members,
        "contributors": members - len(timeline["uncounted"]),
        "digest": "",
        "took_part": met or timeline["peer"] in listed or len(listed) < members,  # long lists are cut
        "seconds": timeline["ended"] or 0.0,
        "bytes": sent,
        "applied_at": _end(timeline),
        "phases": spans,
    }


def _end(timeline: Timeline) -> float:
    """When a round was over, in seconds since 1970."""
    return float(timeline["ready_at"] + (timeline["ended"] or 0.0))


def _length(timeline: Timeline) -> float:
    """Seconds from the beginning of a round, with its training, to its end."""
    return float((timeline["ended"] or 0.0) - min(timeline["began"] or 0.0, 0.0))


def _oddities(timeline: Timeline, usual: float) -> str:
    """What was unusual about a round, in words that follow its number; empty if nothing was."""
    length = _length(timeline)
    parts = [f"took {length:.1f} s"]
    if timeline["committed"] is None:
        parts.append("was not committed here")
    parts += dict.fromkeys(_event(each) for each in timeline["events"] if each["what"] in ONCE_A_ROUND)
    is_slow = length > SLOW * usual and length > usual + SLOW_BY
    if len(parts) == 1 and not is_slow:
        return ""
    return f"{'; '.join(parts)}.{f' {_longest(timeline)}' if is_slow else ''}".rstrip()


def _longest(timeline: Timeline) -> str:
    """A sentence about the longest phase of a round."""
    times: dict[str, float] = defaultdict(float)
    for span in timeline["phases"]:
        times[span["phase"]] += span["to"] - span["from"]
    phase, seconds = max(times.items(), key=lambda item: item[1], default=("", 0.0))
    return f"Most of it was {PHASES[phase]}, {seconds:.1f} s." if phase in BEFORE else slowest(timeline)


def _event(event: Answer) -> str:
    who = name(event["peer"])
    words = {"lost": f"{who} was lost", "left": f"{who} left the run", "blamed": f"{who} {event['words']}"}
    return words.get(event["what"]) or str(event["words"])


def _rounds_that_lack(timelines: list[Timeline]) -> list[str]:
    """A sentence about rounds that are not here, if there are any."""
    here = {each["round"] for each in timelines}
    first, last = min(here), max(here)
    gaps = last - first + 1 - len(here)
    said = [f"Rounds before round {first} are not here: a node keeps the last ones."] if first > 1 else []
    lack = f"Of rounds {first} to {last}, {gaps} {'is' if gaps == 1 else 'are'} not here."
    return [*said, lack] if gaps else said


# -- the log ------------------------------------------------------------------------------------------------


def _logged(home: Home, found: NodeStory) -> list[Sentence]:
    """The warnings in the daemon's log since the first round that is here, also those about other runs."""
    try:
        lines = home.daemon_log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        found.lacks.append(
            f"There is no {home.daemon_log.name} in {home.logs}: a node in the foreground logs where it was started."
        )
        return []
    warnings = [told for line in lines if (told := _warning(line, found.story.began)) is not None]
    if len(warnings) > MOST_LOGGED:
        found.lacks.append(f"Only the last {MOST_LOGGED} of {len(warnings)} warnings are told; the log has all.")
    return warnings[-MOST_LOGGED:]


def _warning(line: str, began: float) -> Sentence | None:
    """The warning in a line of the log; None if it is none, or from before the first round."""
    try:
        entry = json.loads(line)
        if LEVELS.get(str(entry["level"]).upper(), 0) < logging.WARNING:
            return None  # other lines have codes, too
        at = datetime.fromisoformat(entry["time"]).timestamp() - began
        words = f"{entry['message']} [{entry['code']}]"
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    return Sentence(at, words) if at >= 0 else None
