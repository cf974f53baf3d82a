"""A node that is started again is in its runs, in touch with the others, and has the same name."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from shoal.node.api.status import verdict
from shoal.node.base.exits import Exit
from shoal.node.client.up.plan import to_toml
from shoal.node.client.up.processes import Children
from tests.integration.nodes import RealNode, until, words_of
from tests.integration.test_node import MANIFEST
from tests.unit.checkpoint_kit import MANIFEST as CHECKPOINTED
from tests.unit.checkpoint_kit import write


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(MANIFEST)
    return path


def commits_again(node: RealNode, others: RealNode, words: object) -> None:
    """`node` takes part in a round that did not exist before."""
    before = others.round()
    until(lambda: node.round() > before, f"{node.folder.name} to commit again", words)  # type: ignore[arg-type]


@pytest.mark.slow
def test_creator_and_member_are_in_their_run_again(children: Children, tmp_path: Path, manifest: Path) -> None:
    """Neither is told anything: no bootstrap address, no run. The creator has created its run once."""
    names = ("creator", "second", "third")
    creator, second, third = nodes = [RealNode(tmp_path / name) for name in names]
    words = partial(words_of, *nodes)
    creator.start(children, create=manifest, train=False)
    until(lambda: creator.row(), "the run", words)
    assert verdict(creator.client.status()) == Exit.OK  # it waits for the first of the others
    for node in (second, third):
        node.start(children, creator.address.partition("/p2p/")[0], join=(str(manifest),))
    until(lambda: min(node.round() for node in nodes) >= 1, "a round", words)
    run, peer = creator.row()["run"], creator.client.status()["peer"]
    assert all(node.client.status()["obstacle"] is None for node in nodes)
    until(lambda: len(peers_in(creator)) == 2, "a note of where the others are", words)

    creator.kill()
    creator.start(children, create=manifest, train=False)
    commits_again(creator, second, words)
    assert (creator.row()["run"], creator.client.status()["peer"]) == (run, peer)
    assert creator.row()["trains"] is False
    assert creator.row()["is_creator"] is True

    until(lambda: len(peers_in(second)) == 2, "a note of where the others are", words)
    second.kill()
    second.start(children)
    commits_again(second, third, words)
    assert second.row()["trains"] is True

    third.client.stop()
    until(lambda: not third.is_running, "the end", words)
    third.start(children)  # a good end is no good-bye for ever
    commits_again(third, second, words)
    for node in nodes:
        assert "Traceback" not in node.words()


@pytest.mark.slow
def test_who_dies_as_soon_as_it_has_joined_finds_the_others_again(
    children: Children, tmp_path: Path, manifest: Path
) -> None:
    creator = RealNode(tmp_path / "creator").start(children, create=manifest, train=False)
    until(lambda: creator.row(), "the run", creator.words)
    member = RealNode(tmp_path / "member").start(children, creator.address)
    until(member.client.peers, "a connection", member.words)
    member.client.join_run(creator.row()["run"], False)
    member.kill()
    member.start(children)  # without a bootstrap address, and at another port
    until(lambda: member.row().get("members") == 2, "the other", member.words)


def peers_in(node: RealNode) -> list[str]:
    return (
        [line for line in node.home.peers.read_text().splitlines() if '"peer"' in line]
        if node.home.peers.exists()
        else []
    )


@pytest.mark.slow
def test_a_node_says_that_nobody_answers_and_forgets_what_it_left(
    children: Children, tmp_path: Path, manifest: Path
) -> None:
    creator = RealNode(tmp_path / "creator").start(children, create=manifest)
    member = RealNode(tmp_path / "member").start(children, creator.address, join=(str(manifest),))
    until(lambda: member.round() >= 1, "a round", member.words)
    until(lambda: peers_in(member), "a note of where the others are", member.words)
    assert member.row()["device"] == "cpu"
    assert member.row()["worker_memory"] > 50 << 20
    assert (member.client.status()["memory"] or 0) > 20 << 20
    creator.kill()
    member.kill()
    member.start(children)
    until(lambda: member.client.status()["obstacle"], "a word", member.words)
    said = member.client.status()
    assert str(said["obstacle"]).startswith("rejoining: nobody has answered yet, tried ")
    until(lambda: member.row(), "the run", member.words)
    assert verdict(member.client.status()) == Exit.SPLIT, "one of two voters is away, and nobody has stopped in order"

    member.client.leave_run("tiny")
    member.kill()
    member.start(children)
    assert member.client.runs() == []
    assert verdict(member.client.status()) == Exit.OK


@pytest.mark.slow
@pytest.mark.long
def test_a_run_that_goes_on_from_a_checkpoint_is_there_again_before_anybody_has_joined(
    children: Children, tmp_path: Path
) -> None:
    checkpoint = write(tmp_path / "elsewhere", 4)
    node = RealNode(tmp_path / "node").start(children)
    node.client.create_run(to_toml(CHECKPOINTED), False, [str(checkpoint)])
    before = node.row()
    assert before["round"] == 4
    node.kill()
    node.start(children)
    until(lambda: node.row(), "the run", node.words)
    assert [node.row()[key] for key in ("run", "round", "root")] == [before[key] for key in ("run", "round", "root")]
    shutil.rmtree(checkpoint)
    node.kill()
    node.start(children)
    until(lambda: node.row(), "the run", node.words)
    node.await_words("checkpoint-gone")


def test_a_damaged_record_is_shown_until_the_run_is_left(children: Children, tmp_path: Path, manifest: Path) -> None:
    node = RealNode(tmp_path / "node").start(children, create=manifest, train=False)
    until(lambda: node.row(), "the run", node.words)
    before = node.row()
    run = before["run"]
    node.kill()
    (node.home.run_folder(run) / "joined.record").write_bytes(b"\xff")
    node.start(children)
    until(lambda: node.row(), "the run", node.words)
    assert node.row()["phase"] == "failed"
    assert node.row().keys() == before.keys()
    assert "is damaged" in node.row()["failure"]
    assert verdict(node.client.status()) == Exit.FAILED_RUN
    assert node.client.leave_run(run[:8])["run"] == run
    assert node.row() == {}
