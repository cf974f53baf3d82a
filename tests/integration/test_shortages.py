"""A node that lacks something for a while says so, loses nothing, and goes on by itself."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from shoal.node.client.up.processes import Children
from shoal.node.manifest.manifest import parse_manifest
from shoal.protocol.net.system.identity import Identity
from tests.bad_situations import Left, shown
from tests.integration.nodes import RealNode, until
from tests.integration.test_node import MANIFEST
from tests.preload import AWAY, preloaded
from tests.run_kit import NONCE, id_of

FILES = 256  # what macOS gives a process
STRANGERS = 300
TRAINED = MANIFEST.replace("min_members = 2", "min_members = 2\nstart_members = 2")


def bounded(folder: Path) -> RealNode:
    """A node that may open FILES files, and no more."""
    node = RealNode(folder)
    node.prefix = ("/bin/sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh")
    return node


def in_one_run(children: Children, first: RealNode, second: RealNode) -> Callable[[], str]:
    """The first founds it, the second joins; what both say of it."""
    first.start(children).client.create_run(TRAINED, True, (), NONCE.hex())
    second.start(children, first.address)
    second.client.join_run(str(first.client.run_link("tiny")["link"]), True)
    return lambda: f"{first.row()}\n{first.words()}\n{second.row()}\n{second.words()}"


@pytest.mark.slow
def test_silent_strangers_do_not_take_the_files_that_a_run_needs(children: Children, tmp_path: Path) -> None:
    first, second = bounded(tmp_path / "first"), bounded(tmp_path / "second")
    words = in_one_run(children, first, second)
    until(lambda: min(first.round(), second.round()) >= 1, "a round", words)
    host, port = first.address.split("/")[2], int(first.address.split("/")[4])
    doors = (port, port + 1, first.client.port)
    with ExitStack() as stack:
        for number in range(STRANGERS):
            stack.enter_context(socket.create_connection((host, doors[number % 3]), timeout=10.0))
        before = min(first.round(), second.round())
        until(lambda: min(first.round(), second.round()) >= before + 5, "rounds in spite of them", words)
        assert len(os.listdir(f"/proc/{first.pid}/fd")) < FILES - 60 or not Path("/proc").exists()
        third = RealNode(tmp_path / "third").start(children, first.address)
        until(lambda: third.client.peers(), "somebody who says who it is to be let in", words)
    before = min(first.round(), second.round())
    until(lambda: min(first.round(), second.round()) >= before + 2, "rounds after them", words)
    assert first.row()["failure"] is None
    assert "Traceback" not in first.words()


@pytest.mark.parametrize("background", [True, False])
def test_a_node_that_may_open_too_few_files_says_so_and_does_not_start(tmp_path: Path, background: bool) -> None:
    way = "--background" if background else "--foreground"
    argv = [sys.executable, "-m", "shoal.node", "node", "start", way, "--port", "0", "--admin-port", "0"]
    environ = {**os.environ, "SHOAL_HOME": str(tmp_path / "home")}
    limited = ["/bin/sh", "-c", 'ulimit -n 20; exec "$@"', "sh", *argv]
    found = subprocess.run(limited, capture_output=True, text=True, timeout=120, check=False, env=environ)
    left = Left.in_folder(tmp_path)
    shown("too few files may be open", found.returncode, found.stderr, left)
    assert "may have only 20 files" in found.stderr
    assert "ulimit -n 1024" in found.stderr
    assert background or not left.fresh


def hold_votes(node: RealNode, manifest: str, folder: Path, number: int = errno.ENOSPC) -> Path:
    """No vote of a node in this run can be written, by that error; returns a file that ends that when it is removed."""
    held = folder / "held"
    held.touch()
    me = Identity.load_or_create(node.home.create().identity_key).peer
    run = id_of(parse_manifest(manifest), me)  # `in_one_run` founds it
    journal = node.home.run_folder(run.hex()) / "log" / "journal"
    shim = preloaded(folder, AWAY) | {"SHIM_HELD": str(held), "SHIM_BELOW": str(journal)}
    node.prefix = ("env", *(f"{key}={value}" for key, value in shim.items()), f"SHIM_ERROR={number}")
    return held


@pytest.mark.slow
@pytest.mark.swarm
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE], ids=["disk", "files"])
def test_a_shortage_is_waited_for_and_a_vote_does_not_leave_before(
    children: Children, tmp_path: Path, number: int
) -> None:
    first, second = RealNode(tmp_path / "first"), RealNode(tmp_path / "second")
    held = hold_votes(first, TRAINED, tmp_path, number)
    words = in_one_run(children, first, second)
    until(lambda: os.strerror(number) in str(first.row().get("waiting_for")), "a word", words)
    assert first.row()["failure"] is None
    first.await_words('"code": "record-waits"')
    assert first.round() == 0
    held.unlink()
    until(lambda: min(first.round(), second.round()) >= 2, "rounds", words)
    assert os.strerror(number) not in str(first.row()["waiting_for"])


def test_a_node_whose_disk_stays_full_ends_when_it_is_asked_to(children: Children, tmp_path: Path) -> None:
    node = RealNode(tmp_path / "node")
    hold_votes(node, TRAINED, tmp_path)
    in_one_run(children, node, RealNode(tmp_path / "another"))
    until(lambda: "No space left" in str(node.row().get("waiting_for")), "a word", node.words)
    node.client.stop()
    until(lambda: not node.is_running, "the end", node.words)
    assert "Traceback" not in node.words()


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.ESTALE, errno.ENOTCONN], ids=["nfs", "fuse"])
def test_a_run_is_opened_again_once_the_disk_that_it_is_on_is_back(
    children: Children, tmp_path: Path, number: int
) -> None:
    node, held = RealNode(tmp_path / "node").start(children), tmp_path / "held"
    node.client.create_run(MANIFEST, False)
    node.client.stop()
    until(lambda: not node.is_running, "the end", node.words)
    held.touch()
    shim = preloaded(tmp_path, AWAY) | {"SHIM_HELD": str(held), "SHIM_BELOW": str(node.home.runs)}
    node.prefix = ("env", *(f"{key}={value}" for key, value in shim.items()), f"SHIM_ERROR={number}")
    node.start(children)
    rows = node.client.status
    until(lambda: os.strerror(number) in str(rows()["runs"][0]["waiting_for"]), "a word", node.words)
    assert rows()["runs"][0]["phase"] == "restoring"
    held.unlink()
    until(lambda: node.row().get("phase") == "matching", "the run", node.words)
