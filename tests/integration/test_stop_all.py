"""All nodes of a run are stopped at once, and started again: the run goes on where it was."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shoal.node.api.status import verdict
from shoal.node.base.exits import Exit
from shoal.node.base.options import NodeSettings
from shoal.node.client.launch import foreground_argv
from shoal.node.client.up.processes import Children
from tests.integration.lasting import Lasting, applied, disputed
from tests.integration.nodes import RealNode, until, words_of
from tests.integration.test_node import MANIFEST
from tests.terminals import Terminal


@pytest.mark.slow
def test_a_run_goes_on_when_all_its_nodes_are_back(children: Children, tmp_path: Path) -> None:
    manifest = tmp_path / "run.toml"
    manifest.write_text(MANIFEST)
    creator, second, third = nodes = [RealNode(tmp_path / name) for name in ("creator", "second", "third")]
    words = partial(words_of, *nodes)
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
    for node in (second, third):
        node.launch(children, creator.address)
    until(lambda: min(node.round() for node in nodes) >= creator.round() > before + 3, "further rounds", words)
    assert not any("Traceback" in node.words() for node in nodes)


@pytest.mark.slow
def test_a_run_goes_on_when_the_terminals_of_all_its_nodes_were_closed(children: Children, tmp_path: Path) -> None:
    manifest = tmp_path / "run.toml"
    manifest.write_text(MANIFEST)
    creator, second = nodes = [RealNode(tmp_path / name) for name in ("creator", "second")]

    def words() -> str:
        return "\n".join([*(f"{node.folder.name}: {node.row()}" for node in nodes), *(each.read() for each in shown)])

    with ExitStack() as open_terminals:
        shown: list[Terminal] = []

        def show(node: RealNode, **settings: Any) -> None:
            argv = foreground_argv(
                NodeSettings(node.home.root, 0, "127.0.0.1", admin_port=0, threads=1, mdns=False, **settings)
            )
            environ = {"SHOAL_HOME": str(node.home.root)}
            shown.append(open_terminals.enter_context(Terminal(argv, environ)))

        show(creator, create=manifest)
        creator.ready()
        until(lambda: creator.row(), "the run", words)
        show(second, bootstrap=(creator.address,), join=(str(manifest),))
        until(lambda: min(node.round() for node in nodes) >= 3, "rounds of both", words)
        before = creator.round()
        for terminal in shown:
            terminal.close()
        until(lambda: all(each.process.poll() is not None for each in shown), "the end", words)
        assert [each.process.returncode for each in shown] == [0, 0]

    creator.start(children)
    second.launch(children, creator.address)
    until(lambda: min(node.round() for node in nodes) > before + 3, "further rounds", words)


@pytest.mark.slow
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)], ids=["the last one comes last", "the last one comes first"])
def test_a_run_goes_on_when_the_last_to_stop_is_back_in_whatever_order_they_return(
    children: Children, tmp_path: Path, order: tuple[int, ...]
) -> None:
    three = Lasting(children, tmp_path, 3)
    for node in three.nodes:
        node.client.stop()
        until(lambda node=node: not node.is_running, "the end", three.words)  # type: ignore[misc]
    last = max(applied(three.nodes))
    for place in order:
        three.start([three.nodes[place]])
        if three.nodes[-1].is_running:
            continue
        until(lambda place=place: three.nodes[place].row(), "the run", three.words)  # type: ignore[misc]
        assert max(applied(three.nodes)) == last
    three.go_on(three.nodes, last + 2)
    assert disputed(three.nodes) == []
