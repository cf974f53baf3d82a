"""A run is cut in two while both halves reach the rest of the internet: they learn it from the directory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from shoal.node.client.up.processes import Children
from shoal.node.run.node_state import LOSS_WINDOW
from tests.integration.nodes import until
from tests.integration.test_node import MANIFEST
from tests.netlab.lab import Lab
from tests.netlab.nodes import LabNode

OUTSIDERS = 4
LONG = 300.0  # seconds


class World:
    """Nodes on the internet; those elsewhere are in no run."""

    def __init__(self, lab: Lab, children: Children, folder: Path) -> None:
        self._internet, self._children, self._folder = lab.internet, children, folder
        self._known: tuple[str, ...] = ()
        for number in range(OUTSIDERS):
            self.node(f"elsewhere{number}")

    def node(self, label: str, **settings: Any) -> LabNode:
        """A node somewhere; all it knows is the first of the outsiders."""
        node = LabNode(self._internet.host(label), self._folder / label)
        node.start(self._children, bootstrap=self._known, mdns=False, **settings)
        self._known = self._known or (node.door,)
        return node

    def cut(self, left: list[LabNode], right: list[LabNode]) -> None:
        """Both halves go on reaching those elsewhere."""
        self._internet.cut([node.host for node in left], [node.host for node in right])

    def mend(self) -> None:
        self._internet.mend()


@pytest.mark.slow
def test_both_halves_of_a_run_that_was_cut_say_so_and_come_together_again(
    lab: Lab, children: Children, tmp_path: Path
) -> None:
    manifest = tmp_path / "tiny.toml"
    manifest.write_text(MANIFEST)
    world = World(lab, children, tmp_path)
    left = [world.node("founder", create=manifest)]
    run = left[0].run()
    left += [world.node(f"left{train:d}", join=(run,), train=bool(train)) for train in (1, 0)]
    right = [world.node(f"right{number}", join=(run,), train=False) for number in range(2)]
    members = left + right

    def words() -> str:
        return "\n".join(f"{node.host} {node.status()}\n{node.words()}" for node in members)

    def wait(nodes: list[LabNode], split: bool, voters: int, what: str) -> None:
        def is_so() -> bool:
            return all(is_split(node) == split and newest(node).get("members") == voters for node in nodes)

        until(is_so, what, words, LONG)

    wait(members, False, 5, "a round of all five, and nobody who thinks that they are split")
    world.cut(left, right)
    cut = time.monotonic()
    wait(left, True, 3, "the greater half to go on by itself, and to miss the others")
    wait(right, True, 5, "the smaller half to say that it cannot go on")

    until(
        lambda: time.monotonic() - cut > 2 * LOSS_WINDOW and all(map(is_split, left)),
        "the greater half to know from the directory that the others live, when their loss is long ago",
        words,
        LONG,
    )
    world.mend()
    wait(members, False, 5, "all five in one run again")

    def is_one() -> bool:
        rounds = [newest(node) for node in members]
        return len({(each.get("round"), each.get("digest")) for each in rounds}) == 1

    until(is_one, "one history for all", words)


def is_split(node: LabNode) -> bool:
    return node.state() == "SPLIT"


def newest(node: LabNode) -> dict[str, Any]:
    """The last round that this node knows to be committed."""
    runs = node.status().get("runs") or [{}]
    rounds = node.ask(lambda client: client.rounds(runs[0]["run"], 1)) if "run" in runs[0] else None
    return dict(rounds[-1]) if rounds else {}
