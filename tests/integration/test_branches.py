"""A run whose needed voter is lost for good goes on once somebody says so; whoever was only away is back by itself."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from shoal.node.client.up.processes import Children
from shoal.protocol.base.errors import LocalError
from tests.integration.nodes import RealNode, until, words_of

MANIFEST = """
name = "tiny"
[model]
dim = 32
layers = 1
heads = 2
kv_heads = 1
hidden = 64
context = 32
[method]
inner_steps = 2
batch = 2
[rounds]
min_members = 1
start_members = 2
"""


def two_voters(children: Children, folder: Path, manifest: str) -> tuple[RealNode, RealNode, str]:
    """Who founded the run, and whose vote is needed; another voter; the run."""
    first = RealNode(folder / "first").start(children)
    second = RealNode(folder / "second").start(children, first.address)
    words = partial(words_of, first, second)
    until(second.client.peers, "a connection", words)
    run = str(first.client.create_run(manifest, True)["run"])
    second.client.join_run(run, True)
    until(lambda: len(voters(second, run)) == 2, "both to vote", words)
    return first, second, run


@pytest.mark.slow
@pytest.mark.swarm
def test_the_needed_voter_of_two_is_killed_while_a_third_waits(children: Children, tmp_path: Path) -> None:
    first, second, run = two_voters(children, tmp_path, MANIFEST)
    words = partial(words_of, first, second)
    first.kill()
    third = RealNode(tmp_path / "third").start(children, second.address)
    words = partial(words_of, second, third)
    link = str(second.client.run_link(run)["link"])
    third.client.join_run(link, True)
    peer = str(second.client.status()["peer"])
    until(lambda: "away" in str(second.row().get("waiting_for")), "the lost voter to be missed", words)

    found = second.client.continue_run(run, False)
    assert found["here"] == [peer]
    assert len(found["away"]) == 1
    before = second.round()
    second.client.continue_run(run, True)
    until(lambda: min(second.round(), third.round()) >= before + 3, "rounds of those who are left", words)
    assert "branch-founded" in second.log.read_text()
    with pytest.raises(LocalError, match="can decide all by themselves"):
        second.client.continue_run(run, True)

    first.start(children)
    words = partial(words_of, first, second, third)
    until(lambda: len(voters(second, run)) == 3, "the one that was away to vote again", words)
    goal = second.round() + 2
    until(lambda: min(node.round() for node in (first, second, third)) >= goal, "rounds of all three", words)
    until(lambda: is_same_state(first, second, third), "the same state everywhere", words)


def is_same_state(*nodes: RealNode) -> bool:
    """Looked at in a moment in which all are after the same round."""
    return len({tuple(node.row().get(key) for key in ("round", "digest", "root")) for node in nodes}) == 1


def voters(node: RealNode, run: str) -> list[str]:
    return [each["peer"] for each in node.client.run_details(run)["members"] if each["votes"]]


@pytest.mark.slow
@pytest.mark.swarm
def test_a_laptop_that_slept_meanwhile_wakes_goes_on_alone_and_is_back(children: Children, tmp_path: Path) -> None:
    """Its vote is all that it needs, so there are two histories until it hears of the other one."""
    first, second, run = two_voters(children, tmp_path, MANIFEST)
    words = partial(words_of, first, second)
    os.kill(first.pid, signal.SIGSTOP)
    try:
        until(lambda: "away" in str(second.row().get("waiting_for")), "the sleeper to be missed", second.words)
        before = second.round()
        second.client.continue_run(run, True)
        until(lambda: second.round() >= before + 5, "rounds without it", second.words)
    finally:
        os.kill(first.pid, signal.SIGCONT)
    until(lambda: len(voters(second, run)) == 2, "the one that slept to vote again", words)
    goal = second.round() + 3
    until(lambda: min(first.round(), second.round()) >= goal, "rounds of both", words)
    until(lambda: is_same_state(first, second), "the same state everywhere", words)


@pytest.mark.slow
@pytest.mark.swarm
def test_with_a_patience_those_who_are_left_go_on_by_themselves(children: Children, tmp_path: Path) -> None:
    first, second, run = two_voters(children, tmp_path, MANIFEST + '[trust]\ncontinue_after = "30s"\n')
    first.kill()
    until(lambda: "away" in str(second.row().get("waiting_for")), "the lost voter to be missed", second.words)
    before = second.round()
    until(lambda: second.round() >= before + 3, "rounds without it", second.words)
    assert voters(second, run) == [second.client.status()["peer"]]
