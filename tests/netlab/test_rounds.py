"""Rounds of members behind routers, over lines as homes have: by which paths their payloads travel, and how fast."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from shoal.node.client.up.processes import Children
from shoal.node.run.relay_warning import CODE
from shoal.protocol.base.paths import PATHS
from tests.integration.nodes import until
from tests.netlab.lab import Lab
from tests.netlab.links import Link
from tests.netlab.nodes import LabNode
from tests.netlab.places import settle

LINE = Link(delay=0.025, rate=50e6)
LONG = 300.0  # seconds, for what takes seconds on a machine with nothing else to do
WHOLE = 5 * 60.0  # seconds that three rounds by relays may take
RECOVERY = 10.0  # seconds until words go by another relay

# 0.43 million parameters: 1.7 MB for each member to send, and to get, in each round
MANIFEST = """
name = "lab"
[model]
layers = 2
[method]
inner_steps = 2
batch = 1
[rounds]
start_members = {members}
chunk_bytes = 65_536
"""


class Swarm:
    """Relays that are in no run, and members of one run."""

    def __init__(self, lab: Lab, children: Children, folder: Path, relays: int, places: Sequence[str]) -> None:
        self.lab, self._children, self._folder = lab, children, folder
        self.relays = [self._node(lab.internet.host(f"relay{n}", link=LINE), f"relay{n}") for n in range(relays)]
        self.members = [self._node(settle(lab.internet, each, f"at{n}", LINE), f"{n}") for n, each in enumerate(places)]
        self.homes = [node for node, place in zip(self.members, places, strict=True) if place != "public"]
        self.run = ""

    def limit_circuits(self, carries: int) -> None:
        """Before they begin: have the relays end each circuit when it has carried so many bytes."""
        for each in self.relays:
            each.before = (
                f"from shoal.protocol.net.circuit import book; book.LIMITS = book.Limits(circuit_carries={carries})"
            )

    def _node(self, host: Any, label: str) -> LabNode:
        return LabNode(host, self._folder / label)

    def begin(self) -> None:
        """Who cannot be dialled finds relays first, so that these are outside the run; then all meet in it."""
        [door, *others] = self.relays
        door.start(self._children)
        for each in others:
            each.start(self._children, bootstrap=(door.door,))
        for each in self.homes:
            each.start(self._children, bootstrap=(door.door,))
        wanted = min(3, len(self.relays))
        self.until(lambda: all(len(node.status().get("relays", ())) == wanted for node in self.homes), "reservations")
        for each in self.members:
            if each not in self.homes:
                each.start(self._children, bootstrap=(door.door,))
        known = ("public", "nat")
        self.until(lambda: all(node.status().get("reachability") in known for node in self.members), "verdicts")
        founder, *joiners = self.members
        made = founder.ask(lambda client: client.create_run(MANIFEST.format(members=len(self.members)), True))
        self.run = made["run"]
        for each in joiners:
            each.ask(lambda client: client.join_run(made["link"], True))

    def until(self, condition: Callable[[], bool], what: str, patience: float = LONG) -> float:
        return until(condition, what, self._words, patience)

    def until_round(self, number: int, patience: float = LONG) -> float:
        """Wait until all have committed a round."""
        return self.until(lambda: all(round_of(node) >= number for node in self.members), f"round {number}", patience)

    def rounds(self) -> list[dict[str, Any]]:
        """The rounds as the founder recorded them."""
        return list(self.members[0].ask(lambda client: client.rounds(self.run)) or ())

    def bulk(self) -> dict[str, int]:
        """The bytes of payloads that all members have sent and received, by path, as they say."""
        counts = [row_of(node)["bulk"] for node in self.members]
        return {path: sum(count[path]["sent"] + count[path]["received"] for count in counts) for path in PATHS}

    def show(self, title: str) -> None:
        print(f"\n{title}")
        for each in self.rounds():
            words = {key: each[key] for key in ("round", "entry", "members", "contributors", "resent")}
            print(f"  {words}, {each['seconds']:.2f} s")
        print(f"  bytes of payloads by path: {self.bulk()}", flush=True)

    def _words(self) -> str:
        nodes = [*self.relays, *self.members]
        return "\n".join(f"{node.host} {node.status()}\n{node.words()}" for node in nodes)


def row_of(node: LabNode) -> dict[str, Any]:
    """The only run of a node."""
    return next(iter(node.status().get("runs") or ()), {})


def round_of(node: LabNode) -> int:
    return int(row_of(node).get("round") or 0)


def way(node: LabNode, other: str) -> tuple[str | None, str | None]:
    """The path from a node to a peer, and by which relay."""
    rows = node.ask(lambda client: client.peers()) or ()
    return next(((row["path"], row["relay"]) for row in rows if row["peer"] == other), (None, None))


@pytest.mark.slow
@pytest.mark.patient
def test_no_payload_takes_a_relay_while_some_members_can_be_dialled(
    lab: Lab, children: Children, tmp_path: Path
) -> None:
    """And that relay dies in the middle of a round."""
    places = ("public", "public", "home-drop", "home-drop", "home-symmetric")
    swarm = Swarm(lab, children, tmp_path, 3, places)
    swarm.begin()
    swarm.until_round(3)
    home, symmetric = swarm.members[3:]
    names = [home.name(), symmetric.name()]
    swarm.until(lambda: way(symmetric, names[0])[0] == "relayed", "two that need a relay for their words")
    relay = next(each for each in swarm.relays if each.name() == way(symmetric, names[0])[1])
    struck = relay.name()
    swarm.until(lambda: row_of(symmetric).get("phase") == "reducing", "the middle of a round")
    open_round = round_of(symmetric) + 1
    info = relay.home.read_daemon()
    assert info is not None
    os.kill(info.pid, signal.SIGKILL)
    begin = time.monotonic()

    def speak_again() -> bool:
        ways = way(symmetric, names[0]), way(home, names[1])
        return all(path == "relayed" and by != struck for path, by in ways)

    swarm.until(speak_again, "words by another relay")
    recovered = time.monotonic() - begin
    swarm.relays.remove(relay)
    swarm.until_round(max(6, open_round + 1))
    print(f"\nthe relay is killed in round {open_round}; words go by another {recovered:.1f} s later")
    swarm.show(", ".join(places))
    for each in swarm.rounds():
        assert (each["members"], each["contributors"]) == (5, 5), each
    bulk = swarm.bulk()
    assert bulk["relayed"] == 0
    assert not any(row_of(node)["warnings"] for node in swarm.members)
    passed = sum(each.host.edge.count("received").bytes for each in swarm.relays)
    print(f"  what came to the other relays, of all they do: {passed} bytes")
    assert passed < row_of(symmetric)["bulk"]["direct"]["sent"] / 4
    assert recovered < RECOVERY


@pytest.mark.slow
@pytest.mark.patient
@pytest.mark.parametrize(
    "places", [("home-symmetric",) * 3, ("home-drop", "home-symmetric", "home-symmetric")], ids="+".join
)
def test_where_nobody_is_reached_by_all_payloads_take_a_relay_and_all_are_told(
    lab: Lab, children: Children, tmp_path: Path, places: tuple[str, ...]
) -> None:
    swarm = Swarm(lab, children, tmp_path, 1, places)
    swarm.begin()
    swarm.until_round(1)
    took = swarm.until_round(4, WHOLE)
    swarm.show(f"{', '.join(places)}, one relay; three rounds in {took:.1f} s")
    assert swarm.bulk()["relayed"] > 3 * 2 * 1_700_000
    for node in swarm.members:
        assert [each["code"] for each in row_of(node)["warnings"]] == [CODE]
        assert node.log.read_text().count(f'"{CODE}"') == 1
    print(f"  {row_of(swarm.members[0])['warnings'][0]['words']}")


@pytest.mark.slow
@pytest.mark.patient
def test_a_run_outlives_its_circuits(lab: Lab, children: Children, tmp_path: Path) -> None:
    """A relay ends each circuit after two rounds' payloads or so: who is cut off may miss a round, and comes back."""
    swarm = Swarm(lab, children, tmp_path, 1, ("home-symmetric",) * 3)
    swarm.limit_circuits(3_000_000)
    swarm.begin()
    swarm.until_round(1)
    took = swarm.until_round(4, WHOLE)
    swarm.show(f"three who need a relay that ends circuits after 3 MB; three rounds in {took:.1f} s")
    assert swarm.bulk()["relayed"] > 3 * 2 * 1_700_000
    begin = max(map(round_of, swarm.members))

    def all_in_one() -> bool:
        return any(each["members"] == 3 for each in swarm.rounds() if each["round"] > begin)

    swarm.until(all_in_one, "a round of all three")
