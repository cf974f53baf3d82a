"""A run of real daemons that die and come back, and what they have said of its rounds in all their lives."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from shoal.node.client.up.processes import Children
from shoal.node.run.log_store import FOLDER, JOURNAL
from shoal.protocol.base.ids import PeerId, RunId
from shoal.protocol.log.journal import read
from shoal.protocol.log.register import Rules
from shoal.protocol.log.trust import Crash
from shoal.protocol.net.system.identity import Identity
from tests.integration.nodes import RealNode, join_all, until, words_of
from tests.integration.test_node import MANIFEST

APPLIED = re.compile(r"round (\d+) committed: history (\w+), state (\w+)")


class Lasting:
    """A run of nodes, each of which comes back at the port that it had."""

    def __init__(self, children: Children, folder: Path, count: int) -> None:
        self._children = children
        self.nodes = [RealNode(folder / f"n{number}") for number in range(count)]
        self.words = partial(words_of, *self.nodes)
        first, *others = self.nodes
        first.start(children)
        for node in others:
            node.launch(children, first.address)
        for node in others:
            node.ready()
        self._ports = {node: _port(node) for node in self.nodes}
        self.run = join_all(self.nodes, MANIFEST)
        self.link = first.client.run_link(self.run)["link"]
        self.go_on(self.nodes, 0)
        until(lambda: all(len(self.voters(node)) == count for node in self.nodes), "all of them to vote", self.words)

    def go_on(self, nodes: Sequence[RealNode], beyond: int) -> None:
        """Wait for some rounds of them all."""
        until(lambda: min(node.round() for node in nodes) > beyond, f"a round after {beyond}", self.words)
        until(lambda: all(node.row().get("members") == len(nodes) for node in nodes), "all of them", self.words)

    def kill(self, nodes: Iterable[RealNode]) -> int:
        """SIGKILL, as good as at once; the last round that any of them had applied."""
        nodes = list(nodes)
        for node in nodes:
            assert node.child is not None
            node.child.process.kill()
        for node in nodes:
            node.kill()
        return max(applied(nodes))

    def start(self, nodes: Iterable[RealNode]) -> None:
        """Start them again, and tell them nothing."""
        nodes = list(nodes)
        for node in nodes:
            node.launch(self._children, port=self._ports[node])
        for node in nodes:
            node.ready()

    def voters(self, node: RealNode) -> tuple[PeerId, ...]:
        """Who votes, by what is on the disk of a node."""
        signer = Identity.generate().signer(RunId(bytes.fromhex(self.run)))
        register = read((self.folder_of(node) / JOURNAL).read_bytes(), Rules(Crash(), signer)).register
        return register.voters if register is not None else ()

    def folder_of(self, node: RealNode) -> Path:
        return node.home.run_folder(self.run) / FOLDER


def _port(node: RealNode) -> int:
    found = re.search(r"/(?:tcp|udp)/(\d+)", node.address)
    assert found is not None
    return int(found[1])


class Logged(Protocol):
    """A node of any kind of test, by its log."""

    log: Path


def applied(nodes: Iterable[Logged]) -> dict[int, set[tuple[str, str]]]:
    """Each round that any of the nodes has applied in any of its lives: the histories and states after it."""
    rounds = defaultdict[int, set[tuple[str, str]]](set)
    for node in nodes:
        for number, history, state in APPLIED.findall(node.log.read_text(errors="replace")):
            rounds[int(number)].add((history, state))
    return dict(rounds)


def disputed(nodes: Iterable[Logged]) -> list[int]:
    """The rounds of which they do not all say the same."""
    return [number for number, said in applied(nodes).items() if len(said) > 1]
