"""A run that is cut in two, while both halves reach the rest of the internet, learns that from its directory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.node.standing import LOSS_WINDOW
from shoal.node.up.processes import Children
from tests.integration.nodes import until
from tests.integration.test_node import MANIFEST
from tests.netlab.kit import Lab, LabNode, network

LEFT, RIGHT, ELSEWHERE = "192.0.2", "198.51.100", "203.0.113"  # documentation networks, which count as the internet
OUTSIDERS = 4
LONG = 300.0  # seconds


@pytest.fixture
def lab() -> Iterator[Lab]:
    with network() as lab:
        yield lab


class World:
    """Three networks and the router between them; the nodes elsewhere are in no run."""

    def __init__(self, lab: Lab, children: Children, folder: Path) -> None:
        self.lab, self._children, self._folder = lab, children, folder
        self._router = lab.router()
        self._segments = {net: lab.segment() for net in (LEFT, RIGHT, ELSEWHERE)}
        self._used = dict.fromkeys(self._segments, 0)
        for net, segment in self._segments.items():
            lab.plug(self._router, segment, f"{net}.254/24")
        for _ in range(OUTSIDERS):
            self.node(ELSEWHERE)

    def node(self, net: str, **settings: Any) -> LabNode:
        """A node somewhere; all it knows is one of the outsiders, if it is none itself."""
        self._used[net] += 1
        machine = self.lab.machine()
        self.lab.plug(machine, self._segments[net], f"{net}.{self._used[net]}/24")
        self.lab.route(machine, f"{net}.254")
        known = () if net == ELSEWHERE and self._used[net] == 1 else (f"/ip4/{ELSEWHERE}.1/tcp/4101",)
        node = LabNode(machine, self._folder / f"{net}.{self._used[net]}")
        return node.start(self._children, bootstrap=known, mdns=False, **settings)

    def cut(self) -> None:
        self.lab.cut(self._router, f"{LEFT}.0/24", f"{RIGHT}.0/24")

    def mend(self) -> None:
        self.lab.mend(self._router, f"{LEFT}.0/24", f"{RIGHT}.0/24")


@pytest.mark.slow
def test_both_halves_of_a_run_that_was_cut_say_so_and_come_together_again(lab: Lab, tmp_path: Path) -> None:
    manifest = tmp_path / "tiny.toml"
    manifest.write_text(MANIFEST)
    with Children() as children:
        world = World(lab, children, tmp_path)
        left = [world.node(LEFT, create=manifest)]
        left += [world.node(LEFT, join=(str(manifest),), train=train) for train in (True, False)]
        right = [world.node(RIGHT, join=(str(manifest),), train=False) for _ in range(2)]
        members = left + right

        def words() -> str:
            return "\n".join(f"{node.machine} {node.status()}\n{node.words()}" for node in members)

        def wait(nodes: list[LabNode], split: bool, voters: int, what: str) -> None:
            def is_so() -> bool:
                return all(is_split(node) == split and newest(node).get("members") == voters for node in nodes)

            until(is_so, what, words, LONG)

        wait(members, False, 5, "a round of all five, and nobody who thinks that they are split")
        world.cut()
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
