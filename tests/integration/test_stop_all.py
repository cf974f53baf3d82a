"""All nodes of a run are stopped at once, and started again: the run goes on where it was."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.node.exits import Exit
from shoal.node.health import verdict
from shoal.node.up.processes import Children
from tests.integration.nodes import RealNode, until
from tests.integration.test_node import MANIFEST


@pytest.fixture
def children() -> Iterator[Children]:
    with Children() as started:
        yield started


@pytest.mark.slow
def test_a_run_goes_on_when_all_its_nodes_are_back(children: Children, tmp_path: Path) -> None:
    manifest = tmp_path / "run.toml"
    manifest.write_text(MANIFEST)
    creator, second, third = nodes = [RealNode(tmp_path / name) for name in ("creator", "second", "third")]

    def words() -> str:
        return "\n".join(f"{node.folder.name}: {node.row()}\n{node.words()}" for node in nodes)

    creator.start(children, create=manifest, train=False)
    until(lambda: creator.row(), "the run", words)
    for node in (second, third):
        node.launch(children, creator.address, join=(str(manifest),))
    until(lambda: min(node.round() for node in nodes) >= 3, "rounds of all three", words)
    until(lambda: all(node.row().get("members") == 3 for node in nodes), "all three", words)

    before = creator.round()
    for node in nodes:
        os.kill(node.pid, signal.SIGTERM)
    until(lambda: not any(node.is_running for node in nodes), "the end", words)

    creator.start(children)  # alone for a while: it holds the state, and waits for the others in good health
    until(lambda: creator.round() >= before, "the state", words)
    until(lambda: verdict(creator.client.status()) == Exit.OK, "health", words)
    assert any(tmp_path.glob("*/home/runs/*/rest"))
    for node in (second, third):
        node.launch(children, creator.address)
    until(lambda: min(node.round() for node in nodes) >= creator.round() > before + 3, "further rounds", words)
    until(lambda: not any(tmp_path.glob("*/home/runs/*/rest")), "nothing kept any more, as it is outgrown", words)
    assert not any("Traceback" in node.words() for node in nodes)
