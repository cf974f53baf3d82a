"""`shoal logs --round` for people: where a round's time went, each peer's payloads, and all events in order.

All bars have one scale, from when this node was ready to the end of the round. A bar outside is drawn at the edge,
and the figures beside it give the times. Bars are made of `#` if stdout cannot encode block characters.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable

from shoal.node.api.answers import Answer, Timeline
from shoal.node.api.present import clean, colour, is_terminal, size
from shoal.node.client.cli.flags import can_print

# -- in words ----------------------------------------------------------------------------------------------


BEFORE = ("training", "syncing")  # phases before this member is ready
PAYLOADS = ("contribution", "mean", "chunk")
NAME = 6  # the last characters of a peer's id, by which `shoal peers` and `shoal doctor` know it
WORTH = 0.2  # the share of a phase from which waiting for a peer is mentioned
ALIKE = 0.9  # peers that were waited for this share of the longest wait count as waited for as long
EVENTS = {
    "begun": "the round has its roster, with {peer} as proposer: {words}",
    "committed": "decided, and all bytes are here: {words}",
    "undone": "undone, as its bytes are lost on all disks",
    "called": "the others wait: this node hands in what it has",
    "waiting": "the round cannot begin yet: {words}",
    "suspected": "{peer} does not answer",
    "lost": "{peer} is lost",
    "left": "{peer} has left the run",
    "blamed": "{peer} {words}",
    "met": "{peer} is the partner of this round",
    "exchanged": "all bytes of {peer} are here; {words}",
    "lapsed": "no exchange in this round: {words}",
    "behind": "others are further on: {words}",
    "directed": "the proposer {peer} directs: {words}",
}


def name(peer: str | None) -> str:
    """A peer's short name, for a narrow column."""
    return peer[-NAME:] if peer and peer != "others" else peer or "-"


def after_ready(timeline: Timeline) -> dict[str, float]:
    """The seconds of each phase, without those before this member was ready."""
    total: dict[str, float] = {}
    for span in timeline["phases"]:
        if span["phase"] not in BEFORE:
            total[span["phase"]] = total.get(span["phase"], 0.0) + span["to"] - span["from"]
    return total


def slowest(timeline: Timeline) -> str:
    """A sentence about the longest phase and the peer that was waited for; empty for a round that has not begun."""
    phases = after_ready(timeline)
    if not phases:
        return ""
    phase = max(phases, key=lambda each: phases[each])
    words = f"Most of it was {phase}, {phases[phase]:.3f} of {sum(phases.values()):.3f} s: "
    waits = [each for each in timeline["waited_for"] if each["phase"] == phase]
    if not waits or waits[0]["seconds"] < WORTH * phases[phase]:
        if phase == "matching":
            return f"{words}no member was late; the round waited for more to come, or to be decided on."
        return f"{words}this node was at work itself, and waited for nobody."
    among = [each["peer"] for each in waits if each["seconds"] >= ALIKE * waits[0]["seconds"]]
    last = max(among, key=lambda peer: (_last_heard(timeline, peer), -among.index(peer)))
    seconds = next(each["seconds"] for each in waits if each["peer"] == last)
    many = f", and for {len(among) - 1} more as long" if len(among) > 1 else ""
    return f"{words}it waited {seconds:.3f} s for {name(last)} ({timeline['paths'].get(last, 'not connected')}){many}."


def bytes_by_path(timeline: Timeline, way: str) -> dict[str, int]:
    """The payload bytes that were `sent` or `received`, by the path to their peer."""
    total: dict[str, int] = {}
    for flow in timeline["traffic"]:
        if flow["way"] == way and flow["bytes"]:
            path = timeline["paths"].get(flow["peer"], "unknown")
            total[path] = total.get(path, 0) + flow["bytes"]
    return total


def happenings(timeline: Timeline) -> list[tuple[float, float, str]]:
    """Everything that happened except payloads, in order of time: (first time, last time, words)."""
    rows = [(0.0, 0.0, "ready for the round")] if after_ready(timeline) else []
    rows += [(each["at"], each["at"], _event(each)) for each in timeline["events"]]
    if timeline["ended"] is not None:
        rows.append((timeline["ended"], timeline["ended"], _end(timeline)))
    words = [flow for flow in timeline["traffic"] if flow["kind"] not in PAYLOADS]
    for way, kind in dict.fromkeys((flow["way"], flow["kind"]) for flow in words):
        rows.append(_words_row([flow for flow in words if (flow["way"], flow["kind"]) == (way, kind)]))
    return sorted(rows, key=lambda row: row[:2])


def _end(timeline: Timeline) -> str:
    return "applied" if timeline["committed"] is not None else "over for this node, which has gone on to another state"


def _event(event: Answer) -> str:
    words = EVENTS.get(event["what"], f"{event['what']} {{peer}} {{words}}")
    return words.format(peer=name(event["peer"]), words=event["words"])


def _words_row(flows: list[Answer]) -> tuple[float, float, str]:
    """One row for all messages of one kind and direction."""
    last = max(flows, key=lambda flow: flow["last"])
    count, kind = sum(flow["count"] for flow in flows), flows[0]["kind"].upper()
    way = "to" if flows[0]["way"] == "sent" else "from"
    whom = name(last["peer"]) if len(flows) == 1 else f"{len(flows)} members, the last {name(last['peer'])}"
    times = f" ({count} times)" if count > len(flows) else ""
    return min(flow["first"] for flow in flows), last["last"], f"{kind} {way} {whom}{times}"


def _last_heard(timeline: Timeline, peer: str) -> float:
    came: Iterable[float] = (
        flow["last"] for flow in timeline["traffic"] if flow["peer"] == peer and flow["way"] == "received"
    )
    return max(came, default=float("inf"))  # a peer that has sent nothing was waited for longest


WIDE, NARROWEST = 112, 12  # columns: of all lines without a terminal, and of bars at least
FLOWS = {  # the payloads of a peer that have a line, with its label
    ("sent", "contribution"): "contributions to it",
    ("received", "contribution"): "contributions from it",
    ("received", "mean"): "means from it",
    ("sent", "mean"): "means to it",
    ("received", "chunk"): "its vector",
    ("sent", "chunk"): "our vector to it",
}
LABEL = 23  # columns
MOST_PEERS = 16  # that are shown: those whose payloads came last
FIGURES = "{:>8} {:>8} {:>6} {:>10}  "


def show_round(timeline: Timeline) -> None:
    """Print the round."""
    width = shutil.get_terminal_size((WIDE, 24)).columns if is_terminal() else WIDE
    for number, line in enumerate(lines(timeline, width, blocks=can_print("█"))):
        print(colour(line, "bold") if number == 0 else line)


def lines(timeline: Timeline, width: int, *, blocks: bool) -> list[str]:
    """The round as text of about `width` columns."""
    chart = Chart(timeline, width, "█" if blocks else "#")
    found = [*_opening(timeline, width), "", chart.head(), *chart.phases()]
    peers = chart.peers()
    for peer in peers[:MOST_PEERS]:
        found += ["", *chart.of_peer(peer)]
    if len(peers) > MOST_PEERS:
        found += ["", f"and {len(peers) - MOST_PEERS} more, whose payloads were done earlier; --json has all"]
    return [*found, "", *map(_happening, happenings(timeline))]


class Chart:
    """Lines of figures, each with its bar."""

    def __init__(self, timeline: Timeline, width: int, block: str) -> None:
        self._timeline = timeline
        self._block = block
        self._room = max(NARROWEST, width - LABEL - len(FIGURES.format("", "", "", "")) - 1)
        lasts = [span["to"] for span in timeline["phases"]] + [flow["last"] for flow in timeline["traffic"]]
        self._end = max(timeline["ended"] or max(lasts, default=0.0), 0.001)

    def head(self) -> str:
        """The header: names of the columns, and the ends of the scale."""
        end = f"{self._end:.3f} s"
        scale = "0" + end.rjust(self._room - 1)
        return "".ljust(LABEL) + FIGURES.format("first", "last", "count", "bytes") + scale

    def phases(self) -> list[str]:
        """A line for each phase."""
        return [self._line(each["phase"], each["from"], each["to"]) for each in self._timeline["phases"]]

    def peers(self) -> list[str]:
        """The peers that have sent or received payloads, the latest first."""
        last: dict[str, float] = {}
        for flow in self._timeline["traffic"]:
            if (flow["way"], flow["kind"]) in FLOWS:
                last[flow["peer"]] = max(flow["last"], last.get(flow["peer"], 0.0))
        return sorted(last, key=lambda peer: -last[peer])

    def of_peer(self, peer: str) -> list[str]:
        """A line about a peer's part in the round, and a line for each kind of its payloads."""
        timeline = self._timeline
        owned = timeline["owners"].get(peer, 0)
        facts = [
            timeline["paths"].get(peer, "not connected"),
            f"makes {owned} of {timeline['chunks']} means",
            *(["proposes"] if timeline["proposer"] == peer else []),
            *(["not counted in every chunk"] if peer in timeline["uncounted"] else []),
        ]
        flows = {(flow["way"], flow["kind"]): flow for flow in timeline["traffic"] if flow["peer"] == peer}
        rows = [(words, flows[key]) for key, words in FLOWS.items() if key in flows]
        return [
            f"{clean(name(peer))}: {', '.join(facts)}",
            *(self._line(words, each["first"], each["last"], each["count"], each["bytes"]) for words, each in rows),
        ]

    def _line(self, label: str, first: float, last: float, *figures: int) -> str:
        count, amount = (str(figures[0]), size(figures[1])) if figures else ("", f"{last - first:.3f} s")
        shown = FIGURES.format(f"{first:.3f}", f"{last:.3f}", count, amount or "")
        return f"  {label}".ljust(LABEL) + shown + self._bar(first, last)

    def _bar(self, first: float, last: float) -> str:
        begin, end = (min(max(each / self._end, 0.0), 1.0) * self._room for each in (first, last))
        start = min(int(begin), self._room - 1)
        return " " * start + self._block * max(1, round(end) - start)


def _opening(timeline: Timeline, width: int) -> list[str]:
    at = f"round {timeline['round']} of {clean(timeline.get('name'))}, as {name(timeline['peer'])} saw it"
    words = [_outcome(timeline)]
    if timeline["size"]:
        words.append(_group(timeline))
    for way in ("sent", "received"):
        if by_path := bytes_by_path(timeline, way):
            parts = ", ".join(f"{size(amount)} {path}" for path, amount in by_path.items())
            words.append(f"It {way} {size(sum(by_path.values()))} of payloads ({parts}).")
    return [
        at,
        *textwrap.fill(" ".join(words), width).splitlines(),
        *textwrap.fill(slowest(timeline), width).splitlines(),
    ]


def _outcome(timeline: Timeline) -> str:
    committed, ended = timeline["committed"], timeline["ended"]
    if committed is not None and ended is not None:
        return f"Applied {ended:.3f} s after this node was ready."
    if committed is not None:
        return f"Decided {committed:.3f} s after this node was ready, and about to be applied."
    if ended is not None:
        return "Not committed here: this node has gone on to another state."
    return "It goes on." if after_ready(timeline) else "This node still trains for it; times are since it began to."


def _group(timeline: Timeline) -> str:
    proposer = "this node" if timeline["proposer"] == timeline["peer"] else name(timeline["proposer"])
    missing = ", ".join(map(name, timeline["uncounted"]))
    counted = f", without all of {missing}" if missing else ""
    own = timeline["owners"].get(timeline["peer"], 0)
    means = f"{own} of {timeline['chunks']} means are made here"
    return f"{timeline['size']} members{counted}, proposed by {proposer}; {means}."


def _happening(row: tuple[float, float, str]) -> str:
    first, last, words = row
    until = f" - {last:.3f}" if last - first >= 0.001 else ""
    return f"{first:>8.3f}{until:<10} {clean(words)}"
