"""The answer of `netcheck`, for people: the verdict first, then each finding with what to do, then what to expect.

What is to be done is said once.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator

from shoal.node.cli.present import clean, colour, show_pairs
from shoal.node.service import Answer

STYLES = {"ok": "green", "info": "dim", "warn": "yellow", "bad": "bold red"}
WIDTH = max(map(len, STYLES))
WIDEST = 120  # columns
OTHERS = {
    "public": "that can be dialled",
    "firewalled": "behind a firewall",
    "keeping": "behind a port-keeping router",
    "symmetric": "behind a symmetric router",
}


def show_netcheck(answer: Answer) -> None:
    """Print it."""
    said = answer["verdict"]
    print(clean(said["sentence"]))
    if said["action"]:
        print(clean(f"What to do: {said['action']}."))
    print()
    show_pairs(list(_facts(answer)))
    print()
    for each in answer["findings"]:
        print(f"{_marked(each['level'])}  {clean(each['code'])}")
        print(_folded(each["sentence"]))
        if each["action"] not in ("", said["action"]):
            print(_folded(f"-> {each['action']}"))
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


def _folded(text: str) -> str:
    """Under its mark, within the terminal; an address stays whole to copy."""
    width, indent = min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns), " " * (WIDTH + 2)
    return textwrap.fill(
        clean(text),
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _marked(level: str) -> str:
    padded = f"{clean(level):{WIDTH}}"
    return colour(padded, STYLES[level]) if level in STYLES else padded
