"""Real daemons from the outside: create, join, keep state without training, leave, die and come back."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.node.client import Answer
from shoal.node.exits import Exit
from shoal.node.up.processes import Children
from shoal.protocol.errors import LocalError
from shoal.protocol.identity import Identity
from shoal.protocol.messages.bulk import MayIKnock
from shoal.protocol.messages.node import Refused
from shoal.protocol.network import Network
from shoal.protocol.wire import Message
from tests.integration.nodes import PATIENCE, RealNode, until

MANIFEST = """
name = "tiny"
[model]
dim = 32
layers = 1
hidden = 64
context = 32
[method]
inner_steps = 3
batch = 2
outer_lr = 1.0
outer_momentum = 0.0
[rounds]
min_members = 2
chunk_bytes = 8192
"""


@pytest.fixture
def children() -> Iterator[Children]:
    with Children() as started:
        yield started


@pytest.mark.long
def test_a_run_from_its_creation_to_a_restart(children: Children, tmp_path: Path) -> None:
    first = RealNode(tmp_path / "first").start(children)
    assert first.client.status()["state"] == "SOLO"
    run = str(first.client.create_run(MANIFEST, False)["run"])  # keeps state and votes, but does not train
    second = RealNode(tmp_path / "second").launch(children, first.address)
    third = RealNode(tmp_path / "third").launch(children, first.address)
    nodes = [node.ready() for node in (first, second, third)]

    def words() -> str:
        return "\n".join(f"{node.folder.name}: {node.row()}\n{node.words()}" for node in nodes)

    for node in (second, third):
        until(lambda node=node: node.client.peers(), "a connection", words)  # type: ignore[misc]
        node.client.join_run(run[:12], True)
    for node in (first, second):  # one is through with a round before the other
        until(lambda node=node: full_round(node, run), "a round of all three that both others trained for", words)  # type: ignore[misc]
    assert full_round(first, run)["bytes"] > 0
    assert first.client.status()["runs"][0]["trains"] is False
    check_peers(second, run, words)
    check_timeline(second, run, words)

    third.client.leave_run(run)
    assert third.client.runs() == []
    left_at = newest(first, run)
    until(lambda: newest(first, run) >= left_at + 2, "rounds without the one that left", words)
    assert members_of_last(first, run) == 2

    kept = second.home.run_folder(run) / "rounds.jsonl"
    until(lambda: kept.exists() and b"\n" in kept.read_bytes(), "a timeline on disk", words)
    os.kill(second.pid, signal.SIGKILL)
    until(lambda: not second.is_running, "the death", words)
    last = json.loads(kept.read_bytes().split(b"\n")[-2])  # after the last whole line there may be half a one
    second.start(children)  # and is told nothing
    until(second.row, "the run", words)
    assert second.client.timeline(run, last["round"]).items() >= last.items()
    before = newest(first, run)
    until(lambda: second.round() >= before + 1, "the restarted member to catch up and commit", words)
    assert_same_state(first, second, run, words)
    until(lambda: standing(first) == standing(second) and standing(first)[1] > 0, "the same count of samples", words)


def standing(node: RealNode) -> tuple[int, int]:
    row = node.row()
    return int(row.get("round", 0)), int(row.get("samples", 0))


def members_of_last(node: RealNode, run: str) -> int:
    records = node.client.rounds(run)
    return int(records[-1]["members"]) if records else 0


def newest(node: RealNode, run: str) -> int:
    """The last committed round."""
    return int(node.client.rounds(run)[-1]["round"])


def full_round(node: RealNode, run: str) -> Answer:
    """The last record of a round with three members, of which the one of weight 0 contributes nothing.

    Empty if there is none yet: a member that has just come may have nothing to contribute either.
    """
    records = [each for each in node.client.rounds(run) if (each["members"], each["contributors"]) == (3, 2)]
    return records[-1] if records else {}


def check_peers(node: RealNode, run: str, words: Callable[[], str]) -> None:
    until(lambda: {row["run"] for row in node.client.peers()} == {run}, "nobody but members", words)
    rows = node.client.peers()
    assert {row["path"] for row in rows} <= {"direct", None}
    assert all(set(row) >= {"peer", "run", "round", "path", "rtt_ms"} for row in rows)


def check_timeline(node: RealNode, run: str, words: Callable[[], str]) -> None:
    """What it tells of a round fits what a round is, for programs and for people."""
    last = full_round(node, run)
    shown = node.client.timeline(run, last["round"])
    assert (shown["size"], shown["attempt"]) == (3, last["attempt"])
    assert shown["began"] <= 0 <= shown["committed"] <= shown["ended"]
    assert shown["ended"] == pytest.approx(last["seconds"], abs=0.5)  # read in different turns of a busy event loop
    assert shown["owners"].keys() <= set(shown["members"])
    means = [flow for flow in shown["traffic"] if flow["kind"] in ("final", "fetched")]  # what comes late is fetched
    came = [flow for flow in means if flow["way"] == "received"]
    assert sum(flow["count"] for flow in came) + shown["owners"].get(shown["peer"], 0) >= shown["chunks"] > 1
    assert all(0 <= flow["first"] <= flow["last"] <= shown["committed"] and flow["bytes"] for flow in came)
    until(lambda: "\nMost of it was " in printed_round(node, run), "the words for a round", words)


def printed_round(node: RealNode, run: str) -> str:
    """The command's words for the newest round; empty if that is not kept any more when the command asks at last."""
    number = str(newest(node, run))
    command = [sys.executable, "-m", "shoal.node", "logs", "--round", number]
    environ = os.environ | {"SHOAL_HOME": str(node.home.root)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode:
        assert "nothing is known of round" in done.stderr
        return ""
    assert done.stdout.startswith(f"round {number} of tiny, ")
    return done.stdout


def assert_same_state(one: RealNode, other: RealNode, run: str, words: object) -> None:
    """At some round that both hold, their state files are equal."""
    digests: dict[tuple[str, int], str] = {}

    def meet() -> bool:
        for node in (one, other):
            path = node.folder / "state.safetensors"
            answer = node.client.save_state(run, str(path))
            digests[node.folder.name, answer["round"]] = str(answer["root"])
        common = {round for name, round in digests if (one.folder.name, round) in digests} & {
            round for name, round in digests if (other.folder.name, round) in digests
        }
        return bool(common) and all(
            digests[one.folder.name, round] == digests[other.folder.name, round] for round in common
        )

    until(meet, "a round that both hold", words)  # type: ignore[arg-type]


def test_bad_requests_are_refused_and_change_nothing(children: Children, tmp_path: Path) -> None:
    node = RealNode(tmp_path / "node").start(children)
    with pytest.raises(LocalError, match=r"nearest known key is 'method\.inner_steps'"):
        node.client.create_run(MANIFEST.replace("inner_steps", "inner_step"), True)
    with pytest.raises(LocalError, match="no other peer is connected"):
        node.client.join_run("0123456789abcdef", True)
    with pytest.raises(LocalError, match="is in no run"):
        node.client.leave_run("0123456789abcdef")
    assert node.client.runs() == []
    node.client.create_run(MANIFEST, False)
    with pytest.raises(LocalError, match="already"):
        node.client.create_run(MANIFEST, False)
    assert "Traceback" not in node.words()


def test_a_stranger_is_invited_to_no_socket(children: Children, tmp_path: Path) -> None:
    node = RealNode(tmp_path / "node").start(children)
    node.client.create_run(MANIFEST, False)

    async def ask() -> Message:
        network = Network(Identity.generate(), host="127.0.0.1", port=0)
        await network.start()
        try:
            return await network.call(await network.connect(node.address), MayIKnock())
        finally:
            await network.close()

    answer = asyncio.run(ask())
    assert isinstance(answer, Refused)
    assert "no run" in answer.reason


def test_a_lost_home_ends_the_node(children: Children, tmp_path: Path) -> None:
    node = RealNode(tmp_path / "node").start(children)
    node.client.create_run(MANIFEST, False)
    until(lambda: node.row()["waiting_for"] == "round 1 waits: 1 of at least 2 members are here", "a word", node.words)
    shutil.rmtree(node.home.root)
    until(lambda: not node.is_running, "the end", node.words)
    assert node.child is not None
    assert node.child.process.returncode == Exit.FAILED
    assert f"shoal: the node's folder {node.home.root} is gone" in node.words()
    assert "Traceback" not in node.words()


def test_an_unreachable_bootstrap_ends_nothing(children: Children, tmp_path: Path) -> None:
    nobody = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWGbVRr6TdYgNWYn3FYVXP2XbLhSG6yfHwkLWGxP4rS7DZ"
    node = RealNode(tmp_path / "node").start(children, nobody)
    until(lambda: "bootstrap-unreachable" in node.words(), "the warning", node.words)
    assert node.client.status()["state"] == "SOLO"
    assert "Traceback" not in node.words()
