"""Trains a family of experts on pictures with real daemons on this machine, one of which is killed meanwhile."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.node.api.answers import Answer
from shoal.node.api.client import Client
from shoal.node.base.home import Home
from shoal.node.base.options import NodeSettings
from shoal.node.client.launch import foreground_argv
from shoal.node.client.up.processes import Child, Children
from shoal.protocol.base.errors import LocalError, ShoalError

PATIENCE = 900.0  # seconds for all parts, also of a busy machine
STARTING = 180.0  # seconds for a daemon to answer
POLL = 0.2

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Trained:
    """The outcome of the training."""

    seconds: float
    payload_bytes: int  # of contributions and means, by the daemons' own counters
    file_bytes: int  # of the published experts
    killed: str  # the part that the killed peer was training
    published: int  # the part's newest round when its peer was killed
    taken_from: int  # the round from which another peer went on
    taken_after: float  # seconds from the death until another had claimed the part


class Peer:
    """One daemon."""

    def __init__(self, folder: Path, children: Children, bootstrap: str | None) -> None:
        self.home, self.log = Home(folder / "home").create(), folder / "node.log"
        settings = NodeSettings(
            home=self.home.root,
            port=0,
            listen_host="127.0.0.1",
            admin_port=0,
            threads=1,
            bootstrap=(bootstrap,) if bootstrap else (),
        )
        self.child: Child = children.start(foreground_argv(settings), self.log, {"SHOAL_HOME": str(self.home.root)})

    @property
    def client(self) -> Client:
        """A client of its API."""
        return Client(self.home)

    def ready(self) -> Peer:
        """Waits until it answers."""
        until(lambda: self.home.read_daemon() is not None, f"the daemon of {self.home.root} to start", STARTING)
        return self

    def parts(self, family: str) -> dict[str, Answer]:
        """The parts of a family as this peer sees them; empty while it does not answer."""
        try:
            return {row["part"]: row for row in self.client.experts(family)}
        except ShoalError:
            return {}

    def payload(self) -> int:
        """Bytes of contributions and means that its open runs have sent and received."""
        rows = self.client.status()["runs"]
        return sum(count["sent"] + count["received"] for row in rows for count in (row["bulk"] or {}).values())


def train_family(manifest: str, peers: int, folder: Path, say: Say) -> Trained:
    """Trains a family and kills a peer; published files are in `folder`/experts. LocalError if it does not finish."""
    began = time.monotonic()
    with Children() as children:
        first = Peer(folder / "peer-1", children, None).ready()
        address = str(first.client.status()["addresses"][0])
        rest = [Peer(folder / f"peer-{each}", children, address) for each in range(2, peers + 1)]
        for peer in rest:
            peer.ready()
        until(lambda: all(peer.client.status()["dht"]["servers"] for peer in rest), "the peers to meet", STARTING)
        family = str(first.client.create_run(manifest, True)["run"])
        for peer in rest:
            peer.client.join_run(family, True)
        say(f"{peers} peers train the family {family[:8]}")
        watch = _Watch(family, [first, *rest], say)
        victim, part, published = watch.victim()
        victim.child.kill()
        died = time.monotonic()
        watch.peers.remove(victim)
        say(f"SIGKILL to the peer that trains {part}, of which round {published} is published")
        until(lambda: watch.owner(part) not in (None, watch.victim_id), f"{part} to be taken over")
        after = time.monotonic() - died
        say(f"{part} was taken over {after:.0f} s later")
        until(watch.are_finished, "all parts")
        started = _rounds_of(part, watch.peers)
        answer = first.client.fetch_experts(family, str(folder / "experts"))
        if answer["missing"]:
            raise LocalError(f"no file of {', '.join(answer['missing'])} was published")
        files = sum(int(each["bytes"]) for each in answer["experts"])
        return Trained(time.monotonic() - began, watch.payload, files, part, published, max(started), after)


class _Watch:
    """Watches the training, as the living peers see it."""

    def __init__(self, family: str, peers: list[Peer], say: Say) -> None:
        self.peers, self.payload, self.victim_id = peers, 0, ""
        self._family, self._say = family, say
        self._finished: set[str] = set()

    def owner(self, part: str) -> str | None:
        """The peer that trains a part; "finished" if it is, None if no peer does."""
        self.look()
        found = self.peers[0].parts(self._family).get(part)
        return None if found is None else "finished" if found["finished"] else found["peer"]

    def victim(self) -> tuple[Peer, str, int]:
        """A peer, not the founder, to kill; the cluster that it trains, and the newest round that another peer has."""
        founder, names = self.peers[0], {str(peer.client.status()["peer"]): peer for peer in self.peers[1:]}
        found: list[tuple[str, str, int]] = []

        def is_there() -> bool:
            self.look()
            for part, row in founder.parts(self._family).items():
                file, peer = row["published"], row["peer"]
                if part != "router" and peer in names and file and not row["finished"] and self._is_kept(part, peer):
                    found.append((peer, part, int(file["round"])))
            return bool(found)

        until(is_there, "a peer to have published a file of a part that it goes on with")
        self.victim_id, part, published = found[0]
        return names[self.victim_id], part, published

    def are_finished(self) -> bool:
        """Whether all parts are finished, and the founder has their files."""
        self.look()
        rows = self.peers[0].parts(self._family)
        for part, row in rows.items():
            if row["finished"] and part not in self._finished:
                self._finished.add(part)
                self._say(f"{part} is finished: loss {row['published']['loss']:.4f}")
        return bool(rows) and all(row["finished"] and row["published"]["here"] for row in rows.values())

    def look(self) -> None:
        """Counts payloads; runs that end take their counters with them, so the highest sum is kept."""
        self.payload = max(self.payload, sum(peer.payload() for peer in self.peers))

    def _is_kept(self, part: str, but: str) -> bool:
        others = (peer for peer in self.peers if str(peer.client.status()["peer"]) != but)
        rows = (peer.parts(self._family).get(part) for peer in others)
        return any(row and row["published"] and row["published"]["here"] for row in rows)


def _rounds_of(part: str, peers: list[Peer]) -> list[int]:
    """The rounds from which these peers have begun to train a part, by their logs."""
    text = "\n".join(peer.log.read_text(errors="replace") for peer in peers)
    return [int(each) for each in re.findall(rf"training the part {part} of \S+ from round (\d+)", text)] or [0]


def until(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> None:
    """Waits for a condition; LocalError after `patience` seconds."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise LocalError(f"waited {patience:.0f} s for {what}: see the peers' logs")
        time.sleep(POLL)
