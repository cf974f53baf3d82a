"""Real daemons from the outside: create, join, keep state without training, leave, die and come back."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shoal.node.api.answers import Answer
from shoal.node.api.operations import Operation, Operations
from shoal.node.base.exits import Exit
from shoal.node.base.step_options import TrainerOptions
from shoal.node.client.up.processes import Children
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.bulk import MayIKnock
from shoal.protocol.messages.node import Refused
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.system.identity import Identity
from tests.answer_types import type_errors
from tests.integration.nodes import PATIENCE, RealNode, until, words_of
from tests.run_kit import NONCE

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


@pytest.mark.long
def test_a_run_from_its_creation_to_a_restart(children: Children, tmp_path: Path) -> None:
    first = RealNode(tmp_path / "first").start(children)
    assert first.client.status()["state"] == "SOLO"
    run = str(first.client.create_run(MANIFEST, False)["run"])  # keeps state and votes, but does not train
    trainer = TrainerOptions(micro_batch=1, recompute=True)
    second = RealNode(tmp_path / "second").launch(children, first.address, device="cpu", trainer=trainer)
    third = RealNode(tmp_path / "third").launch(children, first.address)
    nodes = [node.ready() for node in (first, second, third)]
    words = partial(words_of, *nodes)
    for node in (second, third):
        until(lambda node=node: node.client.peers(), "a connection", words)  # type: ignore[misc]
        node.client.join_run(run[:12], True)
    for node in (first, second):  # one is through with a round before the other
        until(lambda node=node: full_round(node, run), "a round of all three that both others trained for", words)  # type: ignore[misc]
    assert full_round(first, run)["bytes"] > 0
    assert first.client.status()["runs"][0]["trains"] is False
    check_trainer(second, run, words)
    check_peers(second, run, words)
    check_timeline(second, run, words)
    check_answers(second, run)

    peer = str(second.client.status()["peer"])
    until(lambda: peer in first.voters(run), "its vote", words)
    with pytest.raises(LocalError, match="has a vote already"):
        first.client.promote_member(run, peer[-8:])

    third.client.leave_run(run)
    assert third.client.runs() == []
    left_at = newest(first, run)
    until(lambda: newest(first, run) >= left_at + 2, "rounds without the one that left", words)
    assert members_of_last(first, run) == 2

    kept = second.home.run_folder(run) / "rounds.jsonl"
    until(lambda: kept.exists() and kept.read_bytes().count(b"\n") > 1, "timelines on disk", words)
    second.kill()
    last = json.loads(kept.read_bytes().split(b"\n")[-3])  # it may do the round of the last whole line again
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


def check_trainer(node: RealNode, run: str, words: Callable[[], str]) -> None:
    """The worker has the settings that its owner asked for, and the status shows them."""
    until(lambda: node.row().get("micro_batch") == 1 and node.row().get("model_flops_utilization"), "the use", words)
    log = node.home.run_folder(run) / "worker.log"
    told = [json.loads(line)["message"] for line in log.read_text().splitlines()]
    assert told == ["cpu trains on 2 sequences in micro-batches of 1, activations recomputed"]


def check_peers(node: RealNode, run: str, words: Callable[[], str]) -> None:
    until(lambda: {row["run"] for row in node.client.peers()} == {run}, "nobody but members", words)
    rows = node.client.peers()
    assert {row["path"] for row in rows} <= {"direct", None}
    assert all(set(row) >= {"peer", "run", "round", "path", "rtt_ms"} for row in rows)


def check_answers(node: RealNode, run: str) -> None:
    """They are what the table of operations says, with all keys."""
    client, table = node.client, Operations
    answers: list[tuple[Operation[Any, Any], Any]] = [
        (table.status, client.status()),
        (table.peers, client.peers()),
        (table.netcheck, client.netcheck()),
        (table.run_details, client.run_details(run)),
        (table.rounds, client.rounds(run)),
        (table.timeline, client.timeline(run, full_round(node, run)["round"])),
        (table.run_link, client.run_link(run)),
    ]
    for operation, answer in answers:
        assert not list(type_errors(operation.answer, answer, operation.name, needs_all=True))


def check_timeline(node: RealNode, run: str, words: Callable[[], str]) -> None:
    """A node's timeline of a round is consistent, for programs and for people."""
    last = full_round(node, run)
    shown: Answer = node.client.timeline(run, last["round"])
    assert shown["size"] == 3
    assert shown["began"] <= 0 <= shown["committed"] <= shown["ended"]
    assert shown["ended"] == pytest.approx(last["seconds"], abs=0.5)  # read in different turns of a busy event loop
    assert shown["owners"].keys() <= set(shown["members"])
    means = [flow for flow in shown["traffic"] if flow["kind"] == "mean"]
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


def test_a_node_alone_refuses_what_is_wrong_and_ends_with_its_home(children: Children, tmp_path: Path) -> None:
    nobody = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWGbVRr6TdYgNWYn3FYVXP2XbLhSG6yfHwkLWGxP4rS7DZ"
    node = RealNode(tmp_path / "node").start(children, nobody)
    until(lambda: "bootstrap-unreachable" in node.words(), "the warning, which ends nothing", node.words)
    assert node.client.status()["state"] == "SOLO"
    with pytest.raises(LocalError, match=r"nearest known key is 'method\.inner_steps'"):
        node.client.create_run(MANIFEST.replace("inner_steps", "inner_step"), True)
    with pytest.raises(LocalError, match="no other peer is connected"):
        node.client.join_run("0123456789abcdef", True)
    with pytest.raises(LocalError, match="is in no run"):
        node.client.leave_run("0123456789abcdef")
    assert node.client.runs() == [], "what is refused changes nothing"
    node.client.create_run(MANIFEST, False, (), NONCE.hex())
    with pytest.raises(LocalError, match="already"):
        node.client.create_run(MANIFEST, False, (), NONCE.hex())
    with pytest.raises(LocalError, match="a nonce is 32 hexadecimal digits"):
        node.client.create_run(MANIFEST, False, (), "0f")
    answer = asyncio.run(knock(node.address))
    assert isinstance(answer, Refused)
    assert "no run" in answer.reason, "a stranger is invited to no socket"
    until(lambda: node.row()["waiting_for"] == "round 1 waits: 1 of at least 2 members are here", "a word", node.words)
    shutil.rmtree(node.home.root)
    until(lambda: not node.is_running, "the end", node.words)
    assert node.child is not None
    assert node.child.process.returncode == Exit.FAILED
    assert f"shoal: the node's folder {node.home.root} is gone" in node.words()
    assert "Traceback" not in node.words()


async def knock(address: str) -> Message:
    """The node's answer to a stranger that asks for a bulk socket."""
    network = Network(Identity.generate(), host="127.0.0.1", port=0)
    await network.start()
    try:
        return await network.call(await network.connect(address), MayIKnock())
    finally:
        await network.close()
