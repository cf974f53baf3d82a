"""Real nodes with the manners of a guest: one pauses in a run, stays paused over a restart, and drains."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from shoal.node.client.up.processes import Children
from shoal.node.run.log_store import FOLDER, STATE
from tests.integration.nodes import RealNode, until, words_of
from tests.integration.test_node import MANIFEST

FREED_WITHIN = 2.0  # seconds, as promised


def workers_of(node: RealNode) -> list[int]:
    """The processes whose output goes to the log of a worker of the node."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended, or is another user's
            output = Path(os.readlink(entry / "fd/1")) if entry.name.isdecimal() else Path()
            if output.name == "worker.log" and output.is_relative_to(node.home.root):
                found.append(int(entry.name))
    return found


def seconds_to_pause(node: RealNode) -> float:
    """From the call until its workers are gone."""
    workers = workers_of(node)
    assert workers, "it trains"
    with ThreadPoolExecutor(1) as pool:
        begin = time.monotonic()
        asked = pool.submit(node.client.pause, 3600.0)  # which also waits until the runs are left
        until(lambda: not workers_of(node), "its worker's end", node.words)
        took = time.monotonic() - begin
        answer = asked.result()
    assert answer["freed"]
    assert (answer["paused"], answer["codes"], answer["unsaved"]) == (True, ["asked"], [])
    return took


@pytest.mark.long
def test_a_node_that_pauses_frees_its_devices_while_the_others_go_on(children: Children, tmp_path: Path) -> None:
    manifest = tmp_path / "run.toml"
    manifest.write_text(MANIFEST)
    founder, second, guest = nodes = [RealNode(tmp_path / name) for name in ("founder", "second", "guest")]
    words = partial(words_of, *nodes)
    founder.start(children, create=manifest)
    for node in (second, guest):
        node.launch(children, founder.address, join=(str(manifest),))
    until(lambda: min(node.round() for node in nodes) >= 3, "rounds of all three", words)

    took = seconds_to_pause(guest)
    print(f"\nfrom `shoal pause` to the worker's end: {took:.2f} s")
    until(lambda: guest.row().get("phase") == "paused", "the pause", words)
    until(lambda: founder.row().get("members") == 2, "its good-bye", words)
    assert not founder.client.status()["evidence"], "it has left, and is not lost"
    before = founder.round()
    until(lambda: min(founder.round(), second.round()) > before + 2, "the others to go on", words)
    assert json.loads(guest.home.pause.read_bytes())["until"] > time.time()

    answer = guest.client.resume()
    assert not answer["paused"]
    assert not guest.home.pause.exists()
    until(lambda: guest.round() > before + 2, "it to catch up", words)
    reached = guest.round()
    took_part = lambda: [each["took_part"] for each in guest.client.rounds(guest.row()["run"])]  # noqa: E731
    until(lambda: guest.round() > reached + 1 and any(took_part()), "rounds with it", words)
    until(lambda: guest.client.status()["day"] is not None, "the run's pace to be known", words)
    status = guest.client.status()
    assert status["today"]["rounds"] >= 3
    assert status["today"]["sent"] > 0
    assert status["day"] is not None
    assert status["day"]["sent"] > 0

    round_before = guest.round()
    guest.client.drain(60.0)
    until(lambda: not guest.is_running, "its end", words)
    log = guest.log.read_text()
    assert f"round {round_before + 1} committed" in log
    assert "are not over" not in log


@pytest.mark.slow
@pytest.mark.swarm
def test_who_pauses_the_last_node_learns_that_its_state_cannot_be_written(children: Children, tmp_path: Path) -> None:
    manifest = tmp_path / "run.toml"
    manifest.write_text(MANIFEST)
    node, other = nodes = [RealNode(tmp_path / name) for name in ("node", "other")]
    words = partial(words_of, *nodes)
    node.start(children, create=manifest)
    other.start(children, node.address, join=(str(manifest),))
    until(lambda: min(each.round() for each in nodes) >= 1, "a round of both", words)
    other.client.pause()
    until(lambda: node.row().get("members") == 1, "its good-bye", words)

    run = node.row()["run"]
    in_the_way = node.home.run_folder(run) / FOLDER / STATE
    in_the_way.write_text("a file where there is to be a folder")
    answer = node.client.pause()
    until(lambda: node.client.status()["pause"]["left"], "the run to be left", words)
    [unsaved] = answer["unsaved"] or node.client.status()["pause"]["unsaved"]
    assert (unsaved["run"], unsaved["name"]) == (run, "tiny")
    assert (
        f"its state is only in memory until it can be written: cannot keep the state of tiny in {in_the_way}"
        in unsaved["words"]
    )
    assert node.row()["waiting_for"] == unsaved["words"]
    in_the_way.unlink()
    until(lambda: not node.client.status()["pause"]["unsaved"], "the state to be written", words)
    assert in_the_way.is_dir()
    assert node.row()["waiting_for"] is None


@pytest.mark.slow
def test_devices_are_free_within_two_seconds(children: Children, tmp_path: Path) -> None:
    manifest = tmp_path / "run.toml"
    manifest.write_text(MANIFEST)
    founder, guest = nodes = [RealNode(tmp_path / name) for name in ("founder", "guest")]
    founder.start(children, create=manifest)
    guest.start(children, founder.address, join=(str(manifest),))
    until(lambda: min(node.round() for node in nodes) >= 2, "rounds of both", partial(words_of, *nodes))
    took = seconds_to_pause(guest)
    print(f"\nfrom `shoal pause` to the worker's end: {took:.2f} s")
    assert took < FREED_WITHIN

    guest.kill()
    guest.start(children, founder.address)
    assert guest.client.status()["pause"]["codes"] == ["asked"], "it is kept over a restart"
    assert not workers_of(guest)
