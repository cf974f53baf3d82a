"""Peers of goodput_hivemind.py, of which one after the other is killed and started again: the swarm of goodput.py."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kit.daemons import until
from kit.fleet import HIVEMIND, script
from kit.swarm import PATIENCE, Round, Swarm
from kit.training import HivemindTask
from shoal.node.client.up.processes import Child, Children

MATCHMAKING, AVERAGING = 3.0, 10.0  # seconds; see goodput_hivemind.py
ENVIRON = {"OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Peer:
    """One peer from its start to its death; who is started again is another one."""

    child: Child
    reports: Path
    log: Path

    @property
    def address(self) -> str:
        """Where others find it; empty until it has told."""
        return next((str(row["address"]) for row in self._rows() if "address" in row), "")

    def averages(self) -> list[dict[str, Any]]:
        """Those that it has been in."""
        return [row for row in self._rows() if "epoch" in row]

    def words(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-2000:]

    def _rows(self) -> Iterator[dict[str, Any]]:
        """What it has told; it may have been killed within a line."""
        text = self.reports.read_text(encoding="utf-8") if self.reports.exists() else ""
        return (json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n"))


class HivemindSwarm(Swarm):
    """Processes that train with hivemind.Optimizer; a round is an epoch in which peers have averaged."""

    def __init__(self, children: Children, folder: Path, peers: int) -> None:
        super().__init__(peers)
        self._children, self._folder = children, folder
        self._started = 0
        self._dead: list[Peer] = []
        first = self._start([])
        until(lambda: first.address, "a peer to start", PATIENCE, first.words)
        self._living = [first, *(self._start([first.address]) for _ in range(peers - 1))]

    def settle(self) -> None:
        """See Swarm; here all have been in two averages since they were started."""
        until(lambda: not self._outside(), "all to take part", PATIENCE, self._words)

    def last(self, count: int) -> Sequence[Round]:
        """See Swarm."""
        return rounds(each for peer in (*self._dead, *self._living) for each in peer.averages())[-count:]

    def kill(self, member: int) -> None:
        """See Swarm; hivemind's processes of this peer die with it."""
        victim = self._living[member]
        victim.child.kill()
        self._dead.append(victim)
        known = [peer.address for peer in self._living if peer is not victim and peer.address]
        self._living[member] = self._start(known)

    def _start(self, known: list[str]) -> Peer:
        log, reports = (self._folder / f"{self._started}.{kind}" for kind in ("log", "jsonl"))
        self._started += 1
        task = HivemindTask(str(reports), known, self._size, MATCHMAKING, AVERAGING)
        argv = [*script("goodput_hivemind.py", HIVEMIND), json.dumps(asdict(task))]
        return Peer(self._children.start(argv, log, ENVIRON), reports, log)

    def _outside(self) -> list[Peer]:
        return [peer for peer in self._living if len(peer.averages()) < 2]

    def _words(self) -> str:
        return "\n".join(peer.words() for peer in self._outside())


def rounds(averages: Iterable[dict[str, Any]]) -> list[Round]:
    """The epochs, of what all peers have told: they reach one in turn, and the first that has averaged in it counts."""
    found, newest, samples = list[Round](), -1, 0
    for each in sorted(averages, key=lambda average: average["at"]):
        samples += each["tokens"]
        if each["epoch"] > newest:
            newest = each["epoch"]
            found.append(Round(newest, each["at"], samples))
    return found
