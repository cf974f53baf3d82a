"""Each bad situation of tests/bad_situations.py is made, and the real command tried in it."""

from __future__ import annotations

import ast
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.node.base.codes import CODES
from shoal.node.base.fork_server import ForkServer
from shoal.node.client.up.processes import Child, Children
from tests.bad_situations import (
    BY_NAME,
    GOES_ON,
    LINK,
    SITUATIONS,
    Left,
    Place,
    Situation,
    contents,
    document,
    shown,
    shown_by_row,
)
from tests.integration.nodes import RealNode, until

ROOT = Path(__file__).parents[2]
MADE = [pytest.param(each, id=each.what, marks=[pytest.mark.slow] * each.slow) for each in SITUATIONS if not each.test]


@pytest.fixture(scope="module")
def node(forking: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    """A node that is in no run and knows nobody, for commands that ask one."""
    with Children(server=forking) as children:
        yield RealNode(tmp_path_factory.mktemp("node")).start(children, mdns=False, port_mapping=False)


@pytest.fixture
def met(forking: ForkServer, tmp_path: Path) -> Iterator[RealNode]:
    """Such a node for a command that starts another one: it may know that one afterwards."""
    with Children(server=forking) as children:
        yield RealNode(tmp_path / "met").start(children, mdns=False, port_mapping=False)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "place")
    place.folder.mkdir()
    with place.held:
        yield place


def start(children: Children, command: str, place: Place, home: Path) -> tuple[Child, Path]:
    """The command, and the file with all that it says."""
    environ = {"SHOAL_HOME": str(home), "COLUMNS": "1000", "MARK": str(place.folder)} | place.environ
    log = place.folder.parent / "said.log"
    argv = [*place.prefix, sys.executable, "-P", "-m", "shoal.node", *shlex.split(command)]
    return children.start(argv, log, environ), log


@pytest.mark.parametrize("row", MADE)
def test_what_is_said_and_left(
    row: Situation, place: Place, children: Children, request: pytest.FixtureRequest, forking: ForkServer
) -> None:
    asked: RealNode | None = request.getfixturevalue("met" if row.goes_on else "node") if row.asks else None
    row.make(place)
    place.node = asked.address.partition("/p2p/")[0] if asked else ""
    row = replace(row, command=place.fill(row.command), says=place.fill(row.says))
    before, of_node = contents(place.folder), _state(asked)
    home = asked.home if asked and not row.goes_on else place.home
    child, log = start(children, row.command, place, home.root)
    if row.goes_on:
        until(lambda: row.code in log.read_text(), f"{row.code} in its log", log.read_text)
        assert _processes_of(child, place), "it runs, and nothing of it is found"
        child.ask()
    until(lambda: child.code() is not None, "its end", log.read_text)
    said = log.read_text(errors="replace")
    sentences = [line for line in said.splitlines() if not line.startswith("{")]  # that is the log
    assert len(sentences) == 1 or row.goes_on or "--help" in said, "an error is one line"
    shown_by_row(row, child.code() or 0, said, Left.in_folder(place.folder, before))
    assert _state(asked) == of_node, "the node that was asked is as it was"
    place.held.close()
    if place.home.root.is_dir():
        assert place.home.daemon_process() is None
    until(lambda: not _processes_of(child, place), "the end of its processes", log.read_text)


def _state(node: RealNode | None) -> object:
    """The runs of a node that is asked, and the files of runs in its home."""
    return node and (node.client.status()["runs"], node.home.kept_runs(), contents(node.home.runs))


def _processes_of(child: Child, place: Place) -> list[Path]:
    """Those with the place in their environment, and those in the command's session, if the fork server made it."""
    mark = f"MARK={place.folder}".encode()
    return [
        process
        for process in Path("/proc").glob("[0-9]*")
        if mark in _read(process / "environ") or _session(process) == child.process.pid
    ]


def _session(process: Path) -> int:
    """The session of a process, 0 if it has ended."""
    state, _, _, session, *_ = _read(process / "stat").rpartition(b")")[2].split() or [b"Z", b"", b"", b"0"]
    return 0 if state == b"Z" else int(session)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_ctrl_c_while_a_run_is_joined(place: Place, children: Children, node: RealNode) -> None:
    """Somebody takes the connection and never says a word, so the join waits."""
    import socket

    silent = place.held.enter_context(socket.create_server(("127.0.0.1", 0)))
    from shoal.dht.link import format_link
    from shoal.protocol.base.ids import RunId

    link = format_link(RunId(bytes(range(1, 33))), [f"/ip4/127.0.0.1/tcp/{silent.getsockname()[1]}"])
    before = _state(node)
    child, log = start(children, f"run join {link} --yes", place, node.home.root)
    silent.settimeout(60.0)
    connection, _ = silent.accept()
    with connection:
        os.kill(child.process.pid, signal.SIGINT)
        until(lambda: child.code() is not None, "its end", log.read_text)
    left = Left.in_folder(place.folder)
    shown("Ctrl-C while a run is joined", child.code() or 0, log.read_text(), left)
    assert _state(node) == before
    assert node.client.status()["peer"], "the node goes on"


# -- the table -------------------------------------------------------------------------------------------------


def test_the_table_is_large_and_each_situation_is_told_once() -> None:
    assert len(SITUATIONS) >= 60
    assert len(BY_NAME) == len(SITUATIONS)
    assert not [each.what for each in SITUATIONS if each.code and each.code not in CODES]


@pytest.mark.parametrize("row", [each for each in SITUATIONS if each.test], ids=lambda row: row.what)
def test_a_row_that_is_shown_elsewhere_is(row: Situation) -> None:
    path, _, name = row.test.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    [named] = [each for each in functions if each.name == name]
    calls = [each for each in ast.walk(named) if isinstance(each, ast.Call) and ast.unparse(each.func) == "shown"]
    calls = [each for each in calls if ast.unparse(each.args[0]) == repr(row.what)]
    assert calls, f"{row.test} does not compare with the table"
    assert row.left == GOES_ON or any(len(each.args) == 4 for each in calls), "and does not see what is left"


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_text("y"), lambda path: path.chmod(0o600)])
def test_what_is_not_as_it_was_is_seen(tmp_path: Path, change: Callable[[Path], object]) -> None:
    kept = Place(tmp_path).write("folder/file", "x")
    kept.chmod(0o644)
    before = contents(tmp_path)
    assert Left.in_folder(tmp_path, before) == Left(frozenset())
    Place(tmp_path).write("folder/fresh", "x")
    change(kept)
    assert Left.in_folder(tmp_path, before) == Left(frozenset({"fresh"}), frozenset({"folder/file"}))


def test_the_document_is_current() -> None:
    text = (ROOT / "docs" / "bad-situations.md").read_text(encoding="utf-8")
    assert text == document(), "run `python -m tests.bad_situations > docs/bad-situations.md`"


def test_the_link_of_the_table_is_a_good_one() -> None:
    from shoal.dht.link import parse_link

    assert parse_link(LINK).addresses == ("/ip4/127.0.0.1/tcp/9",)
