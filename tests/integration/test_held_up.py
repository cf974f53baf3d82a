"""A node whose disk hangs, or whose terminal or log takes nothing: its loops, its API and its peers do not wait."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from shoal.node.base.home import Home
from shoal.node.base.options import NodeSettings
from shoal.node.client.launch import foreground_argv
from shoal.node.client.up.processes import Children
from tests.integration.nodes import RealNode, until
from tests.integration.test_node import MANIFEST
from tests.preload import HELD_FOLDER, SLOW_DISK, preloaded
from tests.unread import fill

HELD = 4.0  # seconds


@pytest.mark.parametrize("kind", ["a pipe", pytest.param("a terminal", marks=pytest.mark.slow)])
def test_a_node_whose_words_nobody_takes_starts_answers_and_ends(tmp_path: Path, kind: str) -> None:
    home = Home(tmp_path / "home").create()
    ours, theirs = os.pipe() if kind == "a pipe" else pty.openpty()
    fill(theirs)
    settings = NodeSettings(home=home.root, port=0, listen_host="127.0.0.1", admin_port=0, threads=1)
    with ExitStack() as stack:
        for each in (ours, theirs):
            stack.callback(os.close, each)
        process = subprocess.Popen(
            foreground_argv(settings), stdout=theirs, stderr=theirs, env={**os.environ, "SHOAL_HOME": str(home.root)}
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        node = RealNode(tmp_path)
        until(lambda: node.home.read_daemon() is not None, "the node to start", node.words)
        began = time.monotonic()
        node.client.create_run(MANIFEST, False)  # which is logged
        assert node.client.status()["runs"]
        assert time.monotonic() - began < 60.0
        node.client.stop()
        assert process.wait(60.0) == 0


@pytest.mark.slow
def test_a_disk_that_hangs_holds_up_no_loop_and_no_vote_leaves_before_it_is_there(
    children: Children, tmp_path: Path
) -> None:
    held, waits = tmp_path / "held", tmp_path / "waits"
    shim = preloaded(tmp_path, SLOW_DISK) | {"SHIM_HELD": str(held), "SHIM_WAITS": str(waits)}
    first = RealNode(tmp_path / "first")
    first.prefix = ("env", *(f"{name}={value}" for name, value in shim.items()))
    first.start(children)
    first.client.create_run(MANIFEST.replace("min_members = 2", "min_members = 2\nstart_members = 2"), True)
    second = RealNode(tmp_path / "second").start(children, first.address)
    second.client.join_run(str(first.client.run_link("tiny")["link"]), True)

    def words() -> str:
        return f"{first.row()}\n{first.words()}\n{second.row()}\n{second.words()}"

    until(lambda: min(first.round(), second.round()) >= 2, "rounds", words)
    held.touch()
    until(waits.exists, "a vote that waits for the disk", words)
    stuck, began, slowest = first.round(), time.monotonic(), 0.0
    while time.monotonic() - began < HELD:
        asked = time.monotonic()
        assert first.client.status()["runs"]
        slowest = max(slowest, time.monotonic() - asked)
        assert second.row()["members"] == 2  # it still answers who is there
    assert slowest < HELD / 2, slowest
    assert max(first.round(), second.round()) <= stuck + 1
    held.unlink()
    until(lambda: min(first.round(), second.round()) >= stuck + 3, "rounds after it", words)
    assert first.row()["failure"] is None


@pytest.mark.slow
def test_a_node_is_found_by_others_while_its_disk_hangs(children: Children, tmp_path: Path) -> None:
    held, waits = tmp_path / "held", tmp_path / "waits"
    shim = preloaded(tmp_path, SLOW_DISK) | {"SHIM_HELD": str(held), "SHIM_WAITS": str(waits)}
    first = RealNode(tmp_path / "first")
    first.prefix = ("env", *(f"{name}={value}" for name, value in shim.items()))
    first.start(children)
    held.touch()
    creating = subprocess.Popen(
        [sys.executable, "-m", "shoal.node", "run", "create", str(_manifest(tmp_path)), "--no-train"],
        env={**os.environ, "SHOAL_HOME": str(first.home.root)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(waits.exists, "the disk to be waited for", first.words)
        second = RealNode(tmp_path / "second").start(children, first.address)
        until(lambda: second.client.peers() or second.client.status()["peers"], "the first to be met", second.words)
        assert first.client.status()["state"]
        held.unlink()
        assert creating.wait(60.0) == 0
    finally:
        creating.kill()
        creating.wait()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["a run is created", "a worker dies", "a run is left"])
def test_a_folder_of_runs_that_hangs_holds_up_no_loop(children: Children, tmp_path: Path, what: str) -> None:
    held, waits = tmp_path / "held", tmp_path / "waits"
    node = RealNode(tmp_path / "node")
    shim = preloaded(tmp_path, HELD_FOLDER) | {"SHIM_FOLDER": f"{node.home.runs}/"}
    shim |= {"SHIM_HELD": str(held), "SHIM_WAITS": str(waits)}
    node.prefix = ("env", *(f"{name}={value}" for name, value in shim.items()))
    node.start(children)
    alone = MANIFEST.replace("min_members = 2", "min_members = 1\nstart_members = 1")
    if what != "a run is created":
        node.client.create_run(alone, True)
        until(lambda: node.round() >= 2, "rounds", node.words)
    doing = {
        "a run is created": ("run", "create", str(_manifest(tmp_path)), "--no-train"),
        "a worker dies": ("version",),
        "a run is left": ("run", "leave", "tiny"),
    }[what]
    held.touch()
    asking = subprocess.Popen(
        [sys.executable, "-m", "shoal.node", *doing],
        env={**os.environ, "SHOAL_HOME": str(node.home.root)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    if what == "a worker dies":
        (worker,) = node.workers
        os.kill(worker, signal.SIGKILL)
    try:
        until(waits.exists, "the disk to be waited for", node.words)
        began, slowest = time.monotonic(), 0.0
        while time.monotonic() - began < HELD:
            asked = time.monotonic()
            assert node.client.status()["state"]
            slowest = max(slowest, time.monotonic() - asked)
        assert slowest < HELD / 2, slowest
    finally:
        held.unlink()
        assert asking.wait(60.0) == 0
    if what == "a worker dies":
        reached = node.round()
        until(lambda: node.round() > reached + 2, "rounds after it", node.words)
    assert "Traceback" not in node.words()


@pytest.mark.slow
@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_up_waits_for_nodes_that_save(tmp_path: Path, asked: signal.Signals) -> None:
    held, waits, out = tmp_path / "held", tmp_path / "waits", tmp_path / "out"
    shim = preloaded(tmp_path, SLOW_DISK) | {
        "SHIM_HELD": str(held),
        "SHIM_WAITS": str(waits),
        "SHIM_ONLY": "/state",
    }
    argv = [sys.executable, "-m", "shoal.node", "up", "--peers", "2", "--rounds", "10000", "--kill-at", "none"]
    argv += ["--join-at", "none", "--manifest", str(_manifest(tmp_path)), "--out", str(out)]
    held.touch()
    with (tmp_path / "said").open("wb") as said:
        up = subprocess.Popen(argv, env={**os.environ, **shim}, stdout=said, stderr=said)
    try:

        def words() -> str:
            return (tmp_path / "said").read_text(errors="replace")

        until(lambda: "round 2 committed" in words(), "rounds", words)
        up.send_signal(asked)
        until(waits.exists, "a run to be kept", words)
        until(lambda: "is still saving its runs; waiting for it" in words(), "it to wait", words)
        assert up.poll() is None
        held.unlink()
        assert up.wait(60.0) == 128 + asked
        homes = [Home(out / "peers" / name / "home") for name in ("peer-1", "peer-2")]
        assert any(home.kept_runs() for home in homes), words()
    finally:
        held.unlink(missing_ok=True)
        up.terminate()
        up.wait(60.0)


def _manifest(folder: Path) -> Path:
    path = folder / "run.toml"
    path.write_text(MANIFEST)
    return path
