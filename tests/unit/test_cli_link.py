"""`shoal run link`, `preview` and `join`: a stranger's run is shown, and confirmed, before it is joined."""

from __future__ import annotations

import io
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.dht.link import format_link
from shoal.node.api import present
from shoal.node.api.client import Client
from shoal.node.base.exits import Exit
from shoal.node.base.home import Home
from shoal.node.client.cli.run import qr_code
from shoal.protocol.base.ids import RunId
from tests.fake_service import EVIL, LINK, MANIFEST, RUN, FakeService
from tests.run_kit import id_of
from tests.unit.test_cli import Shoal, background, node, shoal

Says = Callable[[str], None]
__all__ = ["background", "node", "shoal"]  # fixtures


class Person(io.StringIO):
    """Somebody at the keyboard."""

    def isatty(self) -> bool:
        return True


def interrupted(*_: object) -> None:
    """As if by Ctrl-C."""
    raise KeyboardInterrupt


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Says:
    """A person at a terminal, and what they type."""

    def sit_down(line: str) -> None:
        monkeypatch.setattr(sys, "stdin", Person(line))
        monkeypatch.setattr(present, "is_terminal", lambda: True)
        monkeypatch.setenv("NO_COLOR", "1")

    return sit_down


@pytest.mark.parametrize("line", ["y\n", "Yes\n", " y"])
def test_who_says_yes_has_seen_what_it_is(shoal: Shoal, node: FakeService, says: Says, line: str) -> None:
    says(line)
    code, out, err = shoal("run", "join", LINK)
    assert (code, err) == (Exit.OK, "")
    for words in ("stdlib, run ", "signed by evil?[2Jpeer", "parameters", "standard library", "memory", "traffic"):
        assert words in out[: out.index("Join? [y/N] ")]
    assert out.endswith(f"Join? [y/N] joined run stdlib ({RUN[:8]}); `shoal status` says how it goes\n")
    assert node.calls == [("preview", LINK), ("join", LINK, True)]


@pytest.mark.parametrize(
    ("operation", "words"), [("join_run", f"join {LINK} --yes"), ("create_run", "create {manifest}")]
)
def test_ctrl_c_while_the_node_enters_a_run(
    shoal: Shoal, node: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, words: str
) -> None:
    (tmp_path / "run.toml").write_text('name = "tiny"')
    monkeypatch.setattr(Client, operation, interrupted)
    code, _, err = shoal("run", *words.replace("{manifest}", str(tmp_path / "run.toml")).split())
    assert code == Exit.INTERRUPTED
    assert err.startswith("\ninterrupted, but the node was asked already")
    assert "`shoal run leave`" in err


@pytest.mark.parametrize("line", ["n\n", "\n", "", "yesterday\n"])
def test_anything_else_is_no(shoal: Shoal, node: FakeService, says: Says, line: str) -> None:
    says(line)
    code, _, err = shoal("run", "join", LINK)
    assert (code, err) == (Exit.FAILED, "shoal: not joined [not-confirmed]\n")
    assert node.calls == [("preview", LINK)]


@pytest.mark.parametrize(("line", "is_sure"), [("y\n", True), ("\n", False)])
def test_who_has_a_run_go_on_is_told_without_whom(
    shoal: Shoal, node: FakeService, says: Says, line: str, is_sure: bool
) -> None:
    says(line)
    code, out, _ = shoal("run", "continue", "stdlib")
    assert code == (Exit.OK if is_sure else Exit.FAILED)
    assert "stdlib can decide nothing: the run waits until its only voter is back; away: evil." in out
    assert "It would go on after round 12 with members: 1, and without " in out
    assert "is not in it, and lost if they are lost for good" in out
    assert "drops its own" in out
    assert "Go on without them? [y/N]" in out
    assert node.calls == [("continue", RUN, False), *([("continue", RUN, True)] if is_sure else [])]


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_where_nobody_can_say_yes_nothing_is_done(shoal: Shoal, node: FakeService, flags: list[str]) -> None:
    code, out, err = shoal("run", "join", LINK, *flags)
    assert (code, out) == (Exit.USAGE, "")
    assert "--yes" in err
    assert err.count("\n") == 1
    assert node.calls == []


def test_who_said_yes_before_is_shown_it_all_the_same(shoal: Shoal, node: FakeService) -> None:
    _, out, _ = shoal("run", "join", f"  <{LINK}>\n", "--yes", "--no-train")
    assert "traffic" in out
    assert "Join?" not in out
    assert node.calls[1][2] is False
    [memory] = [line for line in out.splitlines() if line.startswith("memory ")]
    assert memory.endswith(" for the node, which does not train")


def test_by_the_begin_of_an_id_nothing_else_is_joined_than_was_shown(shoal: Shoal, node: FakeService) -> None:
    assert shoal("run", "join", RUN[:8], "--yes")[0] == Exit.OK
    assert node.calls == [("preview", RUN[:8]), ("join", id_of(MANIFEST, EVIL).hex(), True)]


def test_who_lacks_the_data_is_told_before_it_joins(shoal: Shoal, node: FakeService) -> None:
    node.missing = "no member that was asked gives the run's data; start this node with --data PATH"
    code, _, err = shoal("run", "join", LINK, "--yes")
    assert code == Exit.FAILED
    assert "--data PATH" in err
    assert "--no-train" in err
    assert err.endswith(" [data-nowhere]\n")
    assert node.calls == [("preview", LINK)]
    assert shoal("run", "join", LINK, "--yes", "--no-train")[0] == Exit.OK


def test_the_link_is_printed_in_a_command_that_can_be_pasted(shoal: Shoal, node: FakeService) -> None:
    code, out, err = shoal("run", "link", "stdlib")
    assert (code, shlex.split(out), err) == (Exit.OK, ["shoal", "run", "join", LINK], "")
    assert shoal(*shlex.split(out)[1:], "--yes")[0] == Exit.OK
    assert node.calls[-1] == ("join", LINK, True)
    assert shoal("run", "link", "stdlib", "--qr")[1].splitlines() == [out.strip(), "", *qr_code(LINK)]
    assert json.loads(shoal("run", "link", "stdlib", "--json")[1])["link"] == LINK
    assert shoal("run", "link", "nothing")[0] == Exit.FAILED


def test_a_preview_joins_nothing(shoal: Shoal, node: FakeService) -> None:
    assert "traffic" in shoal("run", "preview", LINK)[1]
    assert '"parameters": ' in shoal("run", "preview", LINK, "--json")[1]
    assert node.calls == [("preview", LINK)] * 2


@pytest.fixture
def _any_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_ADMIN_PORT", "0")  # a node that is started for us knows the variables, too
    monkeypatch.setenv("SHOAL_FOREGROUND", "1")  # and stays out of this terminal


@pytest.mark.usefixtures("_any_port")
def test_where_no_node_runs_one_is_started_and_stays(shoal: Shoal, background: Home) -> None:
    code, out, err = shoal("run", "join", LINK, "--yes")
    assert code == Exit.OK
    assert f"started a node in the background (pid {background.daemon_pid()})" in err
    assert "joined run stdlib" in out
    assert background.daemon_pid() is not None
    assert shoal("run", "preview", LINK)[2] == ""
    assert shoal("node", "stop")[0] == Exit.OK


@pytest.mark.usefixtures("_any_port")
def test_a_run_is_created_without_a_node_too(shoal: Shoal, background: Home, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("typo = 'a'")
    assert shoal("run", "create", str(tmp_path / "run.toml"))[0] == Exit.FAILED
    assert background.daemon_pid() is None
    (tmp_path / "run.toml").write_text("name = 'a'")
    code, out, err = shoal("run", "create", str(tmp_path / "run.toml"))
    assert (code, LINK in out) == (Exit.OK, True)
    assert f"(pid {background.daemon_pid()})" in err


@pytest.mark.usefixtures("_any_port")
def test_a_node_that_was_started_and_asked_goes_on_after_ctrl_c(
    shoal: Shoal, background: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "join_run", interrupted)
    code, _, err = shoal("run", "join", LINK, "--yes")
    assert code == Exit.INTERRUPTED
    assert err.startswith(f"started a node in the background (pid {background.daemon_pid()})")
    assert "while it runs, `shoal run ls` shows whether it is in the run" in err
    assert shoal("run", "ls")[0] == Exit.OK


@pytest.mark.usefixtures("_any_port")
def test_ctrl_c_before_that_stops_it_again(shoal: Shoal, background: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "preview_run", interrupted)
    code, _, err = shoal("run", "join", LINK, "--yes")
    assert (code, "was asked already" in err) == (Exit.INTERRUPTED, False)
    assert background.daemon_pid() is None


@pytest.mark.usefixtures("_any_port")
def test_a_node_that_was_started_for_nothing_is_stopped_again(
    shoal: Shoal, background: Home, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = shoal("run", "preview", LINK)
    assert (code, err) == (Exit.OK, ""), "the node that it needed is gone again"
    assert background.daemon_pid() is None
    says("n\n")
    code, _, err = shoal("run", "join", LINK)
    assert (code, err.endswith("shoal: not joined [not-confirmed]\n")) == (Exit.FAILED, True)
    assert background.daemon_pid() is None


def test_a_node_that_cannot_be_started_says_why(
    shoal: Shoal, background: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NODE", "fails")
    code, out, err = shoal("run", "join", LINK, "--yes")
    assert (code, out) == (Exit.FAILED, "")
    assert err.startswith("shoal: the node did not start: the identity key is of another planet")
    monkeypatch.setenv("SHOAL_PORT", "none")
    code, out, err = shoal("run", "join", LINK, "--yes")
    assert (code, out) == (Exit.USAGE, "")
    assert "Traceback" not in err
    assert background.daemon_pid() is None


def same(run: str, **changed: object) -> dict[str, object]:
    """A run of the same manifest, as the node tells of it."""
    link = format_link(RunId(bytes.fromhex(run)), ["/ip4/192.0.2.7/tcp/4101"])
    row: dict[str, object] = {"run": run, "name": "a", "author": EVIL, "members": 3, "round": 9, "link": link}
    return row | {"joined": False} | changed


OURS, THEIRS, OTHERS = (same(each * 32) for each in ("0a", "0b", "0c"))


def create(shoal: Shoal, folder: Path, *flags: str) -> tuple[int, str, str]:
    (folder / "run.toml").write_text("name = 'a'")
    code, out, err = shoal("run", "create", str(folder / "run.toml"), *flags)
    return int(code), out, err


@pytest.mark.parametrize(("line", "link"), [("1\ny\n", THEIRS["link"]), (" 2 \nyes\n", OTHERS["link"])])
def test_who_creates_a_run_may_join_one_of_the_same_manifest_instead(
    shoal: Shoal, node: FakeService, says: Says, tmp_path: Path, line: str, link: str
) -> None:
    says(line)
    node.same = [OURS | {"joined": True}, THEIRS, OTHERS]
    code, out, _ = create(shoal, tmp_path)
    assert code == Exit.OK
    rows = out[: out.index("Join one [1-2], or create another [n]? ")]
    assert [each.split()[0] for each in rows.splitlines()[-3:]] == ["here", "1", "2"]
    assert "\x1b" not in out
    assert node.calls == [("preview", link), ("join", link, True)]


@pytest.mark.parametrize(
    ("line", "found"), [("n\n", [THEIRS]), ("y\n", [OURS | {"joined": True}]), ("", []), ("no\n", [THEIRS, OTHERS])]
)
def test_or_create_another(
    shoal: Shoal, node: FakeService, says: Says, tmp_path: Path, line: str, found: list[object]
) -> None:
    says(line)
    node.same = found
    assert create(shoal, tmp_path)[0] == Exit.OK
    assert node.calls == [("create", "name = 'a'", True)]


@pytest.mark.parametrize(
    ("line", "found"), [("\n", [THEIRS]), ("2\n", [THEIRS]), ("0\n", [THEIRS]), ("\n", [OURS | {"joined": True}])]
)
def test_any_other_answer_does_nothing(
    shoal: Shoal, node: FakeService, says: Says, tmp_path: Path, line: str, found: list[object]
) -> None:
    says(line)
    node.same = found
    code, _, err = create(shoal, tmp_path)
    assert (code, node.calls) == (Exit.FAILED, [])
    assert "--new" in err


@pytest.mark.parametrize("flags", [("--new",), ("--from", "/checkpoint")])
def test_whoever_says_which_run_is_meant_is_not_asked(
    shoal: Shoal, node: FakeService, says: Says, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    says("")
    node.same = [THEIRS]
    assert create(shoal, tmp_path, *flags)[0] == Exit.OK
    assert node.calls[0][0] == "create"


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_without_a_terminal_a_run_is_created_and_that_is_said(
    shoal: Shoal, node: FakeService, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    node.same = [THEIRS, OTHERS]
    code, _, err = create(shoal, tmp_path, *flags)
    assert (code, err) == (Exit.OK, "this manifest has runs already (0b0b0b0b, 0c0c0c0c): creating another one\n")
    assert node.calls == [("create", "name = 'a'", True)]
