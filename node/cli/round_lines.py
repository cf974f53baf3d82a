"""`shoal logs --round` for people: where a round's time went, each peer's payloads, and what happened in order.

The bars are on one scale, from when this node was ready to the end of the round; what lies outside is drawn at the
edge, and the figures tell when it was. Where a terminal knows no block characters, they are of `#`.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import Any

from shoal.node.cli.present import clean, colour, is_terminal, size
from shoal.node.cli.round_words import after_ready, bytes_by_path, happenings, name, slowest

Answer = dict[str, Any]
WIDE, NARROWEST = 112, 12  # columns of the whole, and of a bar
FLOWS = {  # what of a peer's payloads has a line of its own, and how it is called
    ("sent", "contribution"): "contributions to it",
    ("received", "contribution"): "contributions from it",
    ("received", "final"): "its means",
    ("sent", "final"): "our means to it",
    ("received", "fetched"): "fetched from it",
    ("sent", "fetched"): "fetched by it",
}
LABEL = 23  # columns
MOST_PEERS = 16  # that are shown; of more, those whose payloads were the last
FIGURES = "{:>8} {:>8} {:>6} {:>10}  "


def show_round(timeline: Answer) -> None:
    """Print the round."""
    width = shutil.get_terminal_size((WIDE, 24)).columns if is_terminal() else WIDE
    for number, line in enumerate(lines(timeline, width, blocks=_knows_blocks())):
        print(colour(line, "bold") if number == 0 else line)


def lines(timeline: Answer, width: int, *, blocks: bool) -> list[str]:
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

    def __init__(self, timeline: Answer, width: int, block: str) -> None:
        self._timeline = timeline
        self._block = block
        self._room = max(NARROWEST, width - LABEL - len(FIGURES.format("", "", "", "")) - 1)
        lasts = [span["to"] for span in timeline["phases"]] + [flow["last"] for flow in timeline["traffic"]]
        self._end = max(timeline["ended"] or max(lasts, default=0.0), 0.001)

    def head(self) -> str:
        """Names of the columns, and the ends of the scale."""
        end = f"{self._end:.3f} s"
        scale = "0" + end.rjust(self._room - 1)
        return "".ljust(LABEL) + FIGURES.format("first", "last", "count", "bytes") + scale

    def phases(self) -> list[str]:
        """Where the time went."""
        return [self._line(each["phase"], each["from"], each["to"]) for each in self._timeline["phases"]]

    def peers(self) -> list[str]:
        """Who has sent or got payloads, the last one first."""
        last: dict[str, float] = {}
        for flow in self._timeline["traffic"]:
            if (flow["way"], flow["kind"]) in FLOWS:
                last[flow["peer"]] = max(flow["last"], last.get(flow["peer"], 0.0))
        return sorted(last, key=lambda peer: -last[peer])

    def of_peer(self, peer: str) -> list[str]:
        """A peer's part in the round, and its payloads."""
        timeline = self._timeline
        owned = timeline["owners"].get(peer, 0)
        facts = [
            timeline["paths"].get(peer, "not connected"),
            f"makes {owned} of {timeline['chunks']} means",
            *(["leads"] if timeline["leader"] == peer else []),
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


def _opening(timeline: Answer, width: int) -> list[str]:
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


def _outcome(timeline: Answer) -> str:
    committed, ended = timeline["committed"], timeline["ended"]
    if committed is not None and ended is not None:
        return f"Applied {ended:.3f} s after this node was ready, in attempt {timeline['attempt']}."
    if committed is not None:
        return f"Decided {committed:.3f} s after this node was ready, and about to be applied."
    if ended is not None:
        return "Not committed here: this node has gone on to another state."
    return "It goes on." if after_ready(timeline) else "This node still trains for it; times are since it began to."


def _group(timeline: Answer) -> str:
    leader = "this node" if timeline["leader"] == timeline["peer"] else name(timeline["leader"])
    missing = ", ".join(map(name, timeline["uncounted"]))
    counted = f", without all of {missing}" if missing else ""
    own = timeline["owners"].get(timeline["peer"], 0)
    means = f"{own} of {timeline['chunks']} means are made here"
    return f"{timeline['size']} members{counted}, led by {leader}; {means}."


def _happening(row: tuple[float, float, str]) -> str:
    first, last, words = row
    until = f" - {last:.3f}" if last - first >= 0.001 else ""
    return f"{first:>8.3f}{until:<10} {clean(words)}"


def _knows_blocks() -> bool:
    try:
        "█".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
