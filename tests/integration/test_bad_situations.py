"""Each bad situation of tests/bad_situations.py is made, and the real command tried in it."""

from __future__ import annotations

import ast
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.node.base.codes import CODES
from shoal.node.base.fork_server import ForkServer
from shoal.node.client.up.processes import Child, Children
from tests.bad_situations import AS_BEFORE, BY_NAME, LINK, OWN_FILES, SITUATIONS, Place, Situation, document, shown
from tests.integration.nodes import RealNode, until

ROOT = Path(__file__).parents[2]
MADE = [pytest.param(each, id=each.what, marks=[pytest.mark.slow] * each.slow) for each in SITUATIONS if not each.test]
OWN = {"home", "identity.key", "token", "lock", "logs", "runs", "data", "experts", "peers.json", "stacks.txt"}


@pytest.fixture(scope="module")
def node(forking: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    """A node that is in no run and knows nobody, for commands that ask one."""
    with Children(server=forking) as children:
        yield RealNode(tmp_path_factory.mktemp("node")).start(children, mdns=False, port_mapping=False)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "place")
    place.folder.mkdir()
    with place.held:
        yield place


def start(children: Children, row: Situation, place: Place, node: RealNode | None) -> tuple[Child, Path]:
    """The command, and the file with all that it says."""
    home = node.home.root if node is not None and not row.goes_on else place.home.root
    words = row.command.replace("{folder}", str(place.folder)).replace("{node}", _address(node))
    environ = {"SHOAL_HOME": str(home), "COLUMNS": "1000"} | place.environ
    log = place.folder.parent / "said.log"
    return children.start([sys.executable, "-P", "-m", "shoal.node", *shlex.split(words)], log, environ), log


def _address(node: RealNode | None) -> str:
    return node.address.partition("/p2p/")[0] if node is not None else ""


@pytest.mark.parametrize("row", MADE)
def test_what_is_said_and_left(
    row: Situation, place: Place, children: Children, request: pytest.FixtureRequest, forking: ForkServer
) -> None:
    asked = request.getfixturevalue("node") if row.asks else None
    row.make(place)
    before = _all_in(place.folder)
    child, log = start(children, row, place, asked)
    if row.goes_on:
        until(lambda: row.code in log.read_text(), f"{row.code} in its log", log.read_text)
        child.ask()
    until(lambda: child.code() is not None, "its end", log.read_text)
    said = log.read_text(errors="replace")
    assert said.count("\n") == 1 or row.goes_on or "--help" in said, "an error is one line"
    shown(row.what, child.code() or 0, said)
    if not row.goes_on:
        assert (f"[{row.code}]" in said) == bool(row.code)
    _check_left(row, place, before)


def _check_left(row: Situation, place: Place, before: set[Path]) -> None:
    """Neither a process, nor a file that is not the node's own, nor a lock."""
    fresh = _all_in(place.folder) - before
    if row.left == OWN_FILES:
        assert not [path for path in fresh if path.name not in OWN], fresh
    else:
        assert not fresh, f"{row.left}, and there is {fresh}"
    place.held.close()
    if place.home.root.is_dir():
        assert place.home.daemon_process() is None
    mark = str(place.folder).encode()
    left = [each for each in Path("/proc").glob("[0-9]*/environ") if mark in _read(each)]
    assert not left, "processes are left"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _all_in(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def test_ctrl_c_while_a_run_is_joined(place: Place, children: Children, node: RealNode) -> None:
    """Somebody takes the connection and never says a word, so the join waits."""
    import socket

    silent = place.held.enter_context(socket.create_server(("127.0.0.1", 0)))
    from shoal.dht.link import format_link
    from shoal.protocol.base.ids import RunId

    link = format_link(RunId(bytes(range(1, 33))), [f"/ip4/127.0.0.1/tcp/{silent.getsockname()[1]}"])
    row = Situation("", f"run join {link} --yes", 0, "", "")
    child, log = start(children, row, place, node)
    silent.settimeout(60.0)
    connection, _ = silent.accept()
    with connection:
        os.kill(child.process.pid, signal.SIGINT)
        until(lambda: child.code() is not None, "its end", log.read_text)
    shown("Ctrl-C while a run is joined", child.code() or 0, log.read_text())
    assert log.read_text().strip() == ""
    assert node.row() == {}
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
    assert name in {each.name for each in functions}
    assert f"shown({row.what!r}" in ast.unparse(tree), f"{row.test} does not compare with the table"


def test_the_document_is_current() -> None:
    text = (ROOT / "docs" / "bad-situations.md").read_text(encoding="utf-8")
    assert text == document(), "run `python -m tests.bad_situations > docs/bad-situations.md`"


def test_the_link_of_the_table_is_a_good_one() -> None:
    from shoal.dht.link import parse_link

    assert parse_link(LINK).addresses == ("/ip4/127.0.0.1/tcp/9",)
    assert AS_BEFORE
