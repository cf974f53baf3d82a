"""Prints the answers of `shoal netcheck` and `shoal doctor` for people.

They quote peers, so no control character reaches the terminal. Lines are folded at its width, except that an address
stays whole, to be copied.
"""

from __future__ import annotations

import shutil
import textwrap
import time
from collections.abc import Iterator
from typing import Any

from shoal.node.api.answers import Answer
from shoal.node.api.present import bits, clean, colour, show_pairs

WIDEST = 120  # columns
STYLES = {"ok": "green", "info": "dim", "warn": "yellow", "bad": "bold red"}
LEVEL_WIDTH = max(map(len, STYLES))
OTHERS = {
    "public": "that can be dialled",
    "firewalled": "behind a firewall",
    "keeping": "behind a port-keeping router",
    "symmetric": "behind a symmetric router",
}
INDENT, LABEL = 2, 14  # columns, in the output of doctor
WAYS = {
    "dial": "dialled",
    "relay": "called by",
    "meet": "both dialled at once, helped by",
    "reversal": "dialled back",
    "came": "it came from",
    "lost": "lost the connection with",
    "name": "looked who is at",
    "lookup": "looked into the directories of our runs",
}
THEIR_WAYS = WAYS | {"came": "we came from"}
THEIR_REASONS = {
    "dialled": "it dialled this node",
    "it-dialled": "this node dialled it",
    "reversal": "this node called by a relay, and it dialled back",
    "met": "both dialled at the same moment",
    "relay": "by a relay, no direct way was tried by it",
    "relay-symmetric": "by a relay, as a router gives each destination another port",
    "relay-failed": "by a relay, as the tries to meet failed",
    "relay-early": "by a relay, as it is not known yet where to meet",
    "none": "no connection",
}
OUTCOMES = {  # of the peer's own steps: it sends codes, and they are worded from our side
    "refused": "nothing listens there",
    "silent": "no answer",
    "unreachable": "it has no way there",
    "reset": "the connection was cut",
    "other-identity": "another node answers there",
    "overtaken": "another way was faster",
    "no-place-here": "its router gives each destination another port (symmetric)",
    "no-place-there": "this node's router gives each destination another port (symmetric)",
    "no-place-both": "both routers give each destination another port (symmetric)",
    "too-often": "dialled in vain too often",
}


def folded(text: str, indent: int = 0, hang: int = 0) -> str:
    """`text` folded at the terminal's width, indented by `indent` columns, and by `hang` more after the first line."""
    return textwrap.fill(
        clean(text),
        min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hang),
        break_long_words=False,
        break_on_hyphens=False,
    )


# -- how this node stands in the network ------------------------------------------------------------------------


def show_netcheck(answer: Answer) -> None:
    """The verdict first, then each finding with what to do, unless the verdict said it, then the paths to expect."""
    said = answer["verdict"]
    print(clean(said["sentence"]))
    if said["action"]:
        print(clean(f"What to do: {said['action']}."))
    print()
    show_pairs(list(_facts(answer)))
    print()
    for each in answer["findings"]:
        print(f"{_marked(each['level'])}  {clean(each['code'])}")
        print(folded(each["sentence"], LEVEL_WIDTH + 2))
        if each["action"] not in ("", said["action"]):
            print(folded(f"-> {each['action']}", LEVEL_WIDTH + 2))
    print()
    show_pairs([(f"a peer {words}", answer["forecast"][kind]) for kind, words in OTHERS.items()])
    if not answer["settled"]:
        print(f"Not known yet: {clean(', '.join(answer['pending']))}.")


def _facts(answer: Answer) -> Iterator[tuple[str, object]]:
    addresses = answer["addresses"]
    yield "own addresses", ", ".join(addresses["own"]) or None
    yield "seen by others", ", ".join(addresses["found_at"] or addresses["seen_at"]) or None
    yield "router", answer["nat"]
    yield "relays", len(answer["relays"])


def _marked(level: str) -> str:
    padded = f"{clean(level):{LEVEL_WIDTH}}"
    return colour(padded, STYLES[level]) if level in STYLES else padded


# -- how one peer is reached ------------------------------------------------------------------------------------


class ExaminationPrinter:
    """Prints the events of an examination as they come: steps, then both ends side by side, then the verdict."""

    def __init__(self) -> None:
        self._name: str | None = None  # the peer, if it is known from the beginning
        self._part = ""  # the heading that was printed last

    def add(self, answer: Answer) -> None:
        """Print one event."""
        match answer.get("event"):
            case "peer":
                self._opening(answer)
            case "step":
                self._begin("now" if answer.get("live") else "until now")
                self._step(answer, WAYS)
            case "report":
                self._report(answer)

    # -- parts ----------------------------------------------------------------------------------------------

    def _opening(self, answer: Answer) -> None:
        self._name = answer.get("peer")
        if self._name:
            print(clean(self._name))
        self._addresses(answer.get("addresses", []))

    def _addresses(self, found: list[Answer]) -> None:
        if found:
            self._begin("where it may be")
        for each in found:
            self._say(f"{place(each['address'])}  ({', '.join(each['from'])})")

    def _step(self, step: Answer, ways: dict[str, str]) -> None:
        """One line: when, what, where, and the outcome; `ways` has the words for what was done."""
        when = time.strftime("%H:%M:%S", time.localtime(step["at"]))
        often = f", {step['times']} times" if step["times"] > 1 else ""
        seconds = step.get("seconds", 0.0)
        took = f" after {seconds:.1f} s" if seconds >= 0.05 and step["code"] != "silent" else ""
        came = step.get("words") or OUTCOMES.get(step["code"], step["code"])
        again = max(0.0, float(step.get("again", 0)) - time.time())
        following = f"; again in {again:.0f} s" if again else ""
        where = place(step["where"]) if step["way"] != "meet" else f"the relay {step['where'][-6:]}"
        what = f"{ways.get(step['way'], step['way'])} {where}".strip()
        self._say(f"{when}  {what}: {came}{took}{often}{following}", hang=10)

    def _report(self, report: Answer) -> None:
        if report["path"] is not None:
            self._begin("the connection")
            if not self._name:
                self._pair("peer", report["peer"])
            self._pair("path", report["path"])
            self._pair("why", report["reason"])
            self._pair("round trip", f"{report['rtt_ms']:.1f} ms" if report["rtt_ms"] is not None else None)
            self._pair("rate", _rates(report))
        self._both_ends(report)
        if report["there"] is not None and report["there"]["steps"]:
            self._begin("what it has tried towards this node")
            for step in report["there"]["steps"]:
                self._step(step, THEIR_WAYS)
        verdict = report["verdict"]
        print()
        words = f"{verdict['sentence'][:1].upper()}{verdict['sentence'][1:]} {verdict['advice']}".strip()
        for line in folded(words).splitlines():
            print(colour(line, "green" if verdict["side"] == "nobody" else "yellow"))

    def _both_ends(self, report: Answer) -> None:
        """What each end is behind, side by side."""
        here, there = report["here"], report["there"]
        self._begin("both ends")
        rows = [
            ("", "this node", (report["peer"] or "there")[-6:]),
            ("reachability", here["reachability"], there and there["reachability"]),
            ("router", here["nat"], there and there["nat"]),
            ("relays", len(here["relays"]), there and there["relays"]),
        ]
        for label, ours, theirs in rows:
            self._say(f"{label:<{LABEL}}{clean(ours):<{LABEL}}{clean(theirs)}")
        if there is not None:
            reason = THEIR_REASONS.get(there["reason_code"], there["reason_code"])
            self._pair("its view", f"{there['path']}: {reason}")
            self._pair("it sees us at", ", ".join(map(place, there["addresses"])))
        elif report["there_note"]:
            self._pair("its view", report["there_note"])

    # -- lines ----------------------------------------------------------------------------------------------

    def _begin(self, part: str) -> None:
        """Print a heading, unless it is the current one."""
        if part != self._part:
            self._part = part
            print(f"\n{colour(part, 'bold')}")

    def _pair(self, label: str, value: Any) -> None:
        self._say(f"{label:<{LABEL}}{clean(value)}", hang=LABEL)

    def _say(self, text: str, hang: int = 0) -> None:
        print(folded(text, INDENT, hang).rstrip())


def place(address: str) -> str:
    """An address for people; one by a relay is shortened to the relay's name and address, from 130 characters."""
    way, circuit, _ = address.partition("/p2p-circuit")
    if not circuit:
        return address
    at, _, name = way.partition("/p2p/")
    return f"the relay {name[-6:]} at {at}"


def _rates(report: Answer) -> str:
    rates = [(word, bits(report[key])) for word, key in (("there", "send_rate"), ("back", "receive_rate"))]
    known = ", ".join(f"{rate} {word}" for word, rate in rates if rate is not None)
    note = report.get("rate_note")
    return f"{known or 'not measured'}{f' ({note})' if note else ''}"
