"""A run whose needed voter is lost for good goes on once somebody says so; whoever was only away is back by itself."""

from __future__ import annotations

import os
import shutil
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from shoal.node.client.up.processes import Children
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import PeerId, short
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
    until(lambda: len(second.voters(run)) == 2, "both to vote", words)
    return first, second, run


@pytest.mark.slow
@pytest.mark.swarm
def test_the_needed_voter_of_two_is_killed_while_a_third_waits(children: Children, tmp_path: Path) -> None:
    first, second, run = two_voters(children, tmp_path, MANIFEST)
    lost, peer = (str(node.client.status()["peer"]) for node in (first, second))
    first.kill()
    third = join_from(second, run, children, tmp_path)
    words = partial(words_of, second, third)
    until(lambda: "away" in str(second.row().get("waiting_for")), "the lost voter to be missed", words)

    found, before = second.client.continue_run(run, False), second.round()
    assert (found["here"], found["away"], found["round"]) == ([peer], [lost], before)
    assert f"away: {short(PeerId(lost))}" in found["why"]
    second.client.continue_run(run, True)
    until(lambda: min(second.round(), third.round()) >= before + 3, "rounds of those who are left", words)
    second.await_words("branch-founded")
    with pytest.raises(LocalError, match="can decide all by themselves"):
        second.client.continue_run(run, True)

    first.start(children)
    words = partial(words_of, first, second, third)
    until(lambda: len(second.voters(run)) == 3, "the one that was away to vote again", words)
    goal = second.round() + 2
    until(lambda: min(node.round() for node in (first, second, third)) >= goal, "rounds of all three", words)
    until(lambda: is_same_state(first, second, third), "the same state everywhere", words)


def join_from(node: RealNode, run: str, children: Children, folder: Path) -> RealNode:
    """A third one comes by the link that `node` gives, and waits to be a member."""
    third = RealNode(folder / "third").start(children, node.address)
    third.client.join_run(str(node.client.run_link(run)["link"]), True)
    return third


def is_same_state(*nodes: RealNode) -> bool:
    """Looked at in a moment in which all are after the same round."""
    return len({tuple(node.row().get(key) for key in ("round", "digest", "root")) for node in nodes}) == 1


@pytest.mark.slow
@pytest.mark.swarm
def test_a_laptop_that_slept_meanwhile_is_back_with_the_others(children: Children, tmp_path: Path) -> None:
    """Its vote is all that it needs; if it has decided something before it hears of the others, that counts no more."""
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
    until(lambda: len(second.voters(run)) == 2, "the one that slept to vote again", words)
    goal = second.round() + 3
    until(lambda: min(first.round(), second.round()) >= goal, "rounds of both", words)
    until(lambda: is_same_state(first, second), "the same state everywhere", words)


@pytest.mark.slow
@pytest.mark.swarm
def test_with_a_patience_those_who_are_left_go_on_by_themselves(children: Children, tmp_path: Path) -> None:
    first, second, run = two_voters(children, tmp_path, MANIFEST + '[trust]\ncontinue_after = "30s"\n')
    first.kill()
    third = join_from(second, run, children, tmp_path)
    words = partial(words_of, second, third)
    until(lambda: "away" in str(second.row().get("waiting_for")), "the lost voter to be missed", words)
    before = second.round()
    until(lambda: min(second.round(), third.round()) >= before + 3, "rounds of those who are left", words)
    peers = {str(node.client.status()["peer"]) for node in (second, third)}
    until(lambda: set(second.voters(run)) == peers, "both to vote", words)


@pytest.mark.slow
@pytest.mark.swarm
def test_all_are_stopped_in_order_and_the_home_of_the_last_one_is_deleted(children: Children, tmp_path: Path) -> None:
    """It had the only vote. Whoever had left before it holds the state, and goes on."""
    first, second, run = two_voters(children, tmp_path, MANIFEST + '[trust]\ncontinue_after = "30s"\n')
    third = RealNode(tmp_path / "third").start(children, first.address)
    words = partial(words_of, first, second, third)
    third.client.join_run(str(first.client.run_link(run)["link"]), True)
    until(lambda: len(third.voters(run)) == 3, "all to vote", words)
    for node in (third, first, second):
        node.client.stop()
        until(lambda node=node: not node.is_running, "the end of a node", node.words)  # type: ignore[misc]
    assert "keeps tiny" in second.words() or "stopped with a vote that is needed" in second.words()
    shutil.rmtree(second.home.root)

    third.start(children)
    first.start(children, third.address)
    until(lambda: "goes on without them in" in str(third.row().get("waiting_for")), "the countdown", words)
    before = first.round()
    until(lambda: "goes on without" in str(first.row().get("branch")), "a branch", words)
    until(lambda: min(first.round(), third.round()) >= before + 3, "rounds without the last one", words)
    until(lambda: len(first.voters(run)) == 2, "both to vote", words)
    until(lambda: is_same_state(first, third), "the same state", words)


@pytest.mark.slow
@pytest.mark.swarm
def test_who_has_joined_late_and_left_in_order_has_the_state_when_it_is_back_alone(
    children: Children, tmp_path: Path
) -> None:
    """It has seen none of the rounds that led there, and its run has gone for good with the node that had sent it."""
    founder = RealNode(tmp_path / "founder").start(children)
    manifest = MANIFEST.replace("start_members = 2", "start_members = 1")
    run = str(founder.client.create_run(manifest + '[trust]\ncontinue_after = "30s"\n', True)["run"])
    words = partial(words_of, founder)
    until(lambda: founder.round() >= 3, "rounds of the founder alone", words)
    late = RealNode(tmp_path / "late").start(children, founder.address, checkpoint_every=0)
    late.client.join_run(str(founder.client.run_link(run)["link"]), True)
    until(lambda: len(late.voters(run)) == 2, "both to vote", partial(words_of, founder, late))
    for node in (late, founder):
        node.client.stop()
        until(lambda node=node: not node.is_running, "the end of a node", node.words)  # type: ignore[misc]
    shutil.rmtree(founder.home.root)
    late.start(children, checkpoint_every=0)
    until(lambda: late.round() >= 3, "the state on its own disk", late.words)
    before = late.round()
    until(lambda: late.round() >= before + 2, "rounds on a branch of its own", late.words)


@pytest.mark.slow
@pytest.mark.swarm
def test_a_run_that_is_never_to_go_on_waits_and_says_for_whom(children: Children, tmp_path: Path) -> None:
    first, second, run = two_voters(children, tmp_path, MANIFEST + '[trust]\ncontinue_after = "never"\n')
    name = short(PeerId(str(first.client.status()["peer"])))
    first.kill()
    third = join_from(second, run, children, tmp_path)
    until(lambda: f"away: {name}" in str(second.row().get("waiting_for")), "a word", second.words)
    assert "only `shoal run continue` goes on without them" in str(second.row()["waiting_for"])
    round, begin = second.round(), time.monotonic()

    def has_waited() -> bool:
        """For longer than the shortest patience that a manifest may have, and done nothing meanwhile."""
        row = second.row()
        assert (row["round"], row["branch"]) == (round, None)
        assert third.round() <= round
        return time.monotonic() - begin >= 45.0

    until(has_waited, "time to pass", second.words)
