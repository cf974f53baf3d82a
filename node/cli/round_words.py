"""What a round's timeline means, in words: what took long and because of whom, and what happened in order. Pure.

The timeline is the JSON of `shoal logs --round R --json`, see docs/rounds.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Answer = dict[str, Any]
BEFORE = ("training", "syncing")  # phases before this member is ready
PAYLOADS = ("contribution", "final", "fetched")
NAME = 6  # the last characters of a peer's id, by which `shoal peers` and `shoal doctor` know it
WORTH = 0.2  # the share of a phase for which somebody must be waited for to be named
ALIKE = 0.9  # who was waited for that share of the longest wait may have been the last as well
EVENTS = {
    "begun": "the group of {peer} is at work: {words}",
    "committed": "decided, and all bytes are here: {words}",
    "failed": "failed, and is tried again: {words}",
    "called": "the others wait: this node hands in what it has",
    "waiting": "no group yet: {words}",
    "suspected": "{peer} does not answer",
    "lost": "{peer} is lost",
    "left": "{peer} has left the run",
    "blamed": "{peer} {words}",
    "met": "{peer} is the partner of this round",
    "exchanged": "all bytes of {peer} are here; {words}",
    "lapsed": "no exchange in this round: {words}",
    "behind": "{peer} is further on, in {words}",
    "reassigned": "{peer} gives what a lost owner has not done to others: {words}",
}


def name(peer: str | None) -> str:
    """A peer in a narrow column."""
    return peer[-NAME:] if peer and peer != "others" else peer or "-"


def after_ready(timeline: Answer) -> dict[str, float]:
    """The seconds of each phase of the round, without what came before it."""
    total: dict[str, float] = {}
    for span in timeline["phases"]:
        if span["phase"] not in BEFORE:
            total[span["phase"]] = total.get(span["phase"], 0.0) + span["to"] - span["from"]
    return total


def slowest(timeline: Answer) -> str:
    """What took longest, and who was waited for meanwhile; empty for a round that has not begun."""
    phases = after_ready(timeline)
    if not phases:
        return ""
    phase = max(phases, key=lambda each: phases[each])
    words = f"Most of it was {phase}, {phases[phase]:.3f} of {sum(phases.values()):.3f} s: "
    waits = [each for each in timeline["waited_for"] if each["phase"] == phase]
    if not waits or waits[0]["seconds"] < WORTH * phases[phase]:
        return f"{words}this node was at work itself, and waited for nobody."
    among = [each["peer"] for each in waits if each["seconds"] >= ALIKE * waits[0]["seconds"]]
    last = max(among, key=lambda peer: (_last_heard(timeline, peer), -among.index(peer)))
    seconds = next(each["seconds"] for each in waits if each["peer"] == last)
    many = f", and for {len(among) - 1} more as long" if len(among) > 1 else ""
    return f"{words}it waited {seconds:.3f} s for {name(last)} ({timeline['paths'].get(last, 'not connected')}){many}."


def bytes_by_path(timeline: Answer, way: str) -> dict[str, int]:
    """The payloads that were sent or received, by the path to their peer."""
    total: dict[str, int] = {}
    for flow in timeline["traffic"]:
        if flow["way"] == way and flow["bytes"]:
            path = timeline["paths"].get(flow["peer"], "unknown")
            total[path] = total.get(path, 0) + flow["bytes"]
    return total


def happenings(timeline: Answer) -> list[tuple[float, float, str]]:
    """What happened, but for payloads, in order: first and last time, and words."""
    rows = [(0.0, 0.0, "ready for the round")] if after_ready(timeline) else []
    rows += [(each["at"], each["at"], _event(each)) for each in timeline["events"]]
    if timeline["ended"] is not None:
        rows.append((timeline["ended"], timeline["ended"], _end(timeline)))
    words = [flow for flow in timeline["traffic"] if flow["kind"] not in PAYLOADS]
    for way, kind in dict.fromkeys((flow["way"], flow["kind"]) for flow in words):
        rows.append(_words_row([flow for flow in words if (flow["way"], flow["kind"]) == (way, kind)]))
    return sorted(rows, key=lambda row: row[:2])


def _end(timeline: Answer) -> str:
    return "applied" if timeline["committed"] is not None else "over for this node, which has gone on to another state"


def _event(event: Answer) -> str:
    words = EVENTS.get(event["what"], f"{event['what']} {{peer}} {{words}}")
    return words.format(peer=name(event["peer"]), words=event["words"])


def _words_row(flows: list[Answer]) -> tuple[float, float, str]:
    """All messages of one kind that were sent, or that came."""
    last = max(flows, key=lambda flow: flow["last"])
    count, kind = sum(flow["count"] for flow in flows), flows[0]["kind"].upper()
    way = "to" if flows[0]["way"] == "sent" else "from"
    whom = name(last["peer"]) if len(flows) == 1 else f"{len(flows)} members, the last {name(last['peer'])}"
    times = f" ({count} times)" if count > len(flows) else ""
    return min(flow["first"] for flow in flows), last["last"], f"{kind} {way} {whom}{times}"


def _last_heard(timeline: Answer, peer: str) -> float:
    came: Iterable[float] = (
        flow["last"] for flow in timeline["traffic"] if flow["peer"] == peer and flow["way"] == "received"
    )
    return max(came, default=float("inf"))  # who has sent nothing at all was waited for longest
