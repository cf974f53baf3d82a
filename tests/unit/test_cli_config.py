"""`shoal config`, and what a node that is started takes from where."""

from __future__ import annotations

import json
import shlex
import stat
import sys
from pathlib import Path

import pytest

from shoal.node.api.client import Client, NotAnswering
from shoal.node.base.exits import Exit
from shoal.node.base.home import Home, find_home
from shoal.node.base.options import NodeSettings
from shoal.node.base.settings import BY_KEY
from shoal.node.client import launch
from tests.fake_service import FakeService
from tests.unit.test_cli import Shoal, background, node, shoal
from tests.unit.test_cli_link import Person

__all__ = ["background", "node", "shoal"]  # fixtures


@pytest.fixture
def config() -> Path:
    """The path of config.toml in a home that is there."""
    return find_home().create().config


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[NodeSettings]:
    """The settings of nodes that would have been started."""
    seen: list[NodeSettings] = []
    monkeypatch.setattr(launch, "run_here", lambda settings, chosen: seen.append(settings))
    monkeypatch.setenv("SHOAL_FOREGROUND", "1")
    return seen


def test_a_flag_beats_a_variable_which_beats_the_file_which_beats_the_default(
    shoal: Shoal, config: Path, started: list[NodeSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text('port = 5001\nadmin-port = 5002\nthreads = 3\nmax-up = "20Mbit"\nrecompute = true\n')
    monkeypatch.setenv("SHOAL_PORT", "6001")
    monkeypatch.setenv("SHOAL_ADMIN_PORT", "6002")
    assert shoal("node", "start", "--port", "7001", "--no-recompute", "--mdns") == (Exit.OK, "", "")
    [asked] = started
    assert (asked.port, asked.admin_port, asked.threads, asked.max_up) == (7001, 6002, 3, 2_500_000)
    assert (asked.checkpoint_every, asked.trainer.recompute) == (10, False)
    assert (asked.mdns, asked.port_mapping) == (True, False)  # the tests' environment turns both off
    assert shoal("node", "start", "--max-up", "none")[0] == Exit.OK
    assert (started[1].max_up, started[1].trainer.recompute) == (None, True)


def test_show_prints_what_a_start_would_have_and_where_that_comes_from(
    shoal: Shoal, config: Path, started: list[NodeSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text('threads = 3\nmax-up = "20000kbit"\n')
    monkeypatch.setenv("SHOAL_PORT", "6001")
    code, plain, err = shoal("config", "show")
    assert (code, err) == (Exit.OK, "")
    code, out, _ = shoal("config", "show", "--origin")
    lines = {line.split(" = ")[0]: line for line in out.splitlines()}
    assert set(lines) == set(BY_KEY)
    assert lines["threads"].split() == ["threads", "=", "3", "#", "config.toml"]
    assert lines["max-up"].split() == ["max-up", "=", '"20Mbit"', "#", "config.toml"]
    assert lines["port"].split() == ["port", "=", "6001", "#", "environment", "(SHOAL_PORT)"]
    assert lines["admin-port"].split() == ["admin-port", "=", "4180", "#", "default"]
    shoal("node", "start")
    monkeypatch.delenv("SHOAL_PORT")
    config.write_text(plain)
    shoal("node", "start")
    assert started[0] == started[1], "what it prints is a config.toml with the same meaning"


def test_show_tells_what_the_running_node_has_otherwise(shoal: Shoal, config: Path, node: FakeService) -> None:
    node.settings_of_start = NodeSettings(find_home().root, threads=7, mdns=False, port_mapping=False, admin_port=0)
    config.write_text("threads = 3\n")
    _, out, _ = shoal("config", "show", "--origin")
    differing = [line for line in out.splitlines() if "the running node has" in line]
    assert [line.split("  #")[0].split(" = ")[0] for line in differing] == ["admin-port", "threads"]
    assert differing[1].endswith("# config.toml; the running node has 7")
    rows = json.loads(shoal("config", "show", "--json")[1])
    assert rows["threads"] == {"value": 3, "origin": "config.toml", "running": 7}
    assert rows["port"] == {"value": 4101, "origin": "default"}


def test_set_writes_what_the_flag_would_take(
    shoal: Shoal, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("# mine\nthreads = 2 # two\n")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b").mkdir()
    assert shoal("config", "set", "max-up", "20Mbit") == (Exit.OK, f'max-up = "20Mbit" is in {config}\n', "")
    for words in ("threads 3", "no-share-data yes", "data 'a b' .", "data-limit 0.5", "max-down none"):
        assert shoal("config", "set", *shlex.split(words))[0] == Exit.OK
    assert config.read_text() == (
        '# mine\nthreads = 3 # two\nmax-up = "20Mbit"\nno-share-data = true\n'
        f'data = ["{tmp_path / "a b"}", "{tmp_path}"]\ndata-limit = 0.5\nmax-down = "none"\n'
    )
    assert shoal("config", "unset", "max-up") == (Exit.OK, f"max-up is no longer in {config}\n", "")
    assert shoal("config", "unset", "max-up") == (Exit.OK, f"max-up was not in {config}\n", "")
    assert "max-up" not in config.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("set prot 1", "unknown key \"prot\"; the nearest known key is 'port'"),
        ("unset prot", "the nearest known key is 'port'"),
        ("set port x", "port x is not a whole number"),
        ("set port 70000", "port 70000 is not a port"),
        ("set port 1 2", "port takes one value"),
        ("set max-up 20", "max-up 20 is no rate"),
        ("set data /nowhere/at/all", "data /nowhere/at/all does not exist"),
    ],
)
def test_a_wrong_key_or_value_is_2_and_changes_nothing(shoal: Shoal, config: Path, words: str, said: str) -> None:
    config.write_text("# mine\n")
    code, out, err = shoal("config", *words.split())
    assert (code, out) == (Exit.USAGE, "")
    assert err.startswith("shoal: ")
    assert said in err
    assert config.read_text() == "# mine\n"


def test_set_says_what_beats_it_and_when_it_counts(
    shoal: Shoal, config: Path, node: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_PORT", "6001")
    _, _, err = shoal("config", "set", "port", "5001")
    assert "but SHOAL_PORT is set in this environment" in err
    assert "from its next start on" in err


def test_a_broken_file_stops_a_start_but_neither_status_nor_its_repair(
    shoal: Shoal, config: Path, node: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("prot = 5001\nthreads = 2\n")
    assert shoal("status")[0] == Exit.OK
    for command in ("node start", "config show"):
        code, out, err = shoal(*command.split())
        assert (code, out) == (Exit.USAGE, "")
        assert (
            err == f"shoal: {config}, line 1: unknown key \"prot\"; the nearest known key is 'port' [config-broken]\n"
        )
    assert shoal("config", "unset", "prot")[0] == Exit.OK
    assert config.read_text() == "threads = 2\n"
    config.write_text("port = \n")
    for command in ("node start", "config show", "config set port 1", "config unset port"):
        code, out, err = shoal(*command.split())
        assert (code, out) == (Exit.USAGE, "")
        assert err.startswith(f"shoal: {config} is not TOML: ")
        assert "line 1" in err
    assert config.read_text() == "port = \n"
    monkeypatch.setenv("VISUAL", "true")
    code, out, _ = shoal("config", "edit")
    assert (code, out) == (Exit.OK, f"{config} is as it was\n")


def test_a_run_is_not_entered_by_a_node_with_broken_settings(shoal: Shoal, config: Path, tmp_path: Path) -> None:
    config.write_text("prot = 5001\n")
    (tmp_path / "run.toml").write_text("name = 'a'")
    code, _, err = shoal("run", "create", str(tmp_path / "run.toml"))
    assert code == Exit.USAGE
    assert "line 1: unknown key" in err


def test_a_device_that_is_not_here_is_said_with_its_origin(
    shoal: Shoal, config: Path, started: list[NodeSettings]
) -> None:
    if sys.platform == "darwin":
        pytest.skip("mps may be here")
    config.write_text('device = "mps"\n')
    code, _, err = shoal("node", "start")
    assert (code, started) == (Exit.USAGE, [])
    assert "config.toml: --device mps is not here" in err


def test_a_node_that_is_started_again_is_as_it_was_but_for_flags(shoal: Shoal, background: Home) -> None:
    for words in ("admin-port 0", "threads 2", "max-up 20Mbit"):
        assert shoal("config", "set", *words.split())[0] == Exit.OK
    code, out, err = shoal("node", "start", "--threads", "3", "--no-train", "--admin-port", "0")
    assert (code, err) == (Exit.OK, "")
    *_, first, second, third = out.splitlines()
    assert first == "for this start only: --threads, --no-train; to keep that:"
    assert (second.split(), third.split()) == (
        ["shoal", "config", "set", "threads", "3"],
        ["shoal", "config", "set", "no-train", "true"],
    )
    rows = json.loads(shoal("config", "show", "--json")[1])
    assert {key: row["running"] for key, row in rows.items() if "running" in row} == {"threads": 3, "no-train": True}
    assert shoal("node", "stop")[0] == Exit.OK
    code, out, _ = shoal("node", "start")
    assert (code, "for this start only" in out) == (Exit.OK, False)
    rows = json.loads(shoal("config", "show", "--json")[1])
    assert not [key for key, row in rows.items() if "running" in row]
    assert (rows["threads"]["value"], rows["max-up"]["value"]) == (2, "20Mbit")
    assert shoal("node", "stop")[0] == Exit.OK


def test_a_node_in_the_background_reads_relative_paths_of_the_environment_as_its_starter(
    shoal: Shoal, background: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_DATA", "notes")
    monkeypatch.setenv("SHOAL_ADMIN_PORT", "0")
    assert shoal("node", "start")[0] == Exit.OK
    row = json.loads(shoal("config", "show", "--json")[1])["data"]
    assert row == {"value": [str(tmp_path / "notes")], "origin": "environment"}
    assert shoal("node", "stop")[0] == Exit.OK


# -- the editor ---------------------------------------------------------------------------------------------


def editor(folder: Path, monkeypatch: pytest.MonkeyPatch, *texts: str) -> Path:
    """An editor that writes the next of these texts each time; returns a file with what it was given first."""
    for number, text in enumerate(texts):
        (folder / f"text{number}").write_text(text)
    script = folder / "editor"
    script.write_text(
        f'#!/bin/sh\ncd {shlex.quote(str(folder))}\n[ -e given ] || cp "$1" given\n'
        'for text in text*; do mv "$text" "$1"; exit; done\n'
    )
    script.chmod(0o700)
    monkeypatch.setenv("EDITOR", str(script))
    monkeypatch.delenv("VISUAL", raising=False)
    return folder / "given"


def test_edit_writes_what_is_right(shoal: Shoal, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = editor(tmp_path, monkeypatch, "# hello\nport = 5001\n", "threads = 2\n")
    code, out, err = shoal("config", "edit")
    assert (code, err) == (Exit.OK, "")
    assert out == f"wrote {config}; it counts from the next start of the node on\n"
    assert "# max-up = " in seen.read_text(), "without a file it begins with all settings as comments"
    assert config.read_text() == "# hello\nport = 5001\n"
    seen.unlink()
    shoal("config", "edit")
    assert seen.read_text() == "# hello\nport = 5001\n"
    assert config.read_text() == "threads = 2\n"
    assert not list(config.parent.glob("config.*.toml"))


def test_edit_tells_the_running_node_what_has_changed(
    shoal: Shoal, config: Path, node: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text('max-up = "20Mbit"\nthreads = 3\nport = 5001\ncheckpoint-keep = 4\n')
    text = "# mine\nmax-up = '5MB/s' # fast\nport = 5001\ncheckpoint-keep = 5\n"
    editor(tmp_path, monkeypatch, text, f"# still {text}", 'max-up = "a lot"\n')
    monkeypatch.setenv("SHOAL_CHECKPOINT_KEEP", "6")
    code, out, err = shoal("config", "edit")
    assert (code, out) == (Exit.OK, f"wrote {config}\n")
    assert node.calls == [("settings", {"max-up": "5MB/s", "checkpoint-keep": 5, "threads": None})]
    assert err.splitlines() == [
        "but SHOAL_CHECKPOINT_KEEP is set in this environment, and beats config.toml",
        "the running node has the new max-up now",
        "the running node has the new checkpoint-keep, threads from its next start on: `shoal restart`",
    ]
    assert config.read_text() == text
    assert shoal("config", "edit") == (Exit.OK, f"wrote {config}\n", ""), "it says nothing new"
    code, out, err = shoal("config", "edit")
    assert (code, out) == (Exit.FAILED, "")
    assert "line 1: max-up a lot is no rate" in err
    assert (len(node.calls), config.read_text()) == (1, f"# still {text}"), "what is wrong is told to nobody"


def test_an_edit_that_mends_a_broken_file_is_told_as_a_whole(
    shoal: Shoal, config: Path, node: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("max-up = \n")
    editor(tmp_path, monkeypatch, 'max-up = "5MB/s"\n')
    assert shoal("config", "edit")[2] == "the running node has the new max-up now\n"
    assert node.calls == [("settings", {"max-up": "5MB/s"})]


def test_an_edit_that_the_node_does_not_hear_of_counts_from_its_next_start_on(
    shoal: Shoal, config: Path, node: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(*_: object) -> None:
        raise NotAnswering("it hangs")

    editor(tmp_path, monkeypatch, 'max-up = "5MB/s"\n')
    monkeypatch.setattr(Client, "change_settings", hangs)
    code, _, err = shoal("config", "edit")
    assert (code, err) == (
        Exit.OK,
        "the running node has the new max-up from its next start on: `shoal restart`\n",
    )


def test_a_wrong_text_is_refused_kept_and_edited_again(
    shoal: Shoal, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("port = 5001\n")
    seen = editor(tmp_path, monkeypatch, "prot = 5002\n", "port = 5002\n")
    code, out, err = shoal("config", "edit")
    assert (code, out) == (Exit.FAILED, "")
    assert "line 1: unknown key \"prot\"; the nearest known key is 'port'" in err
    assert config.read_text() == "port = 5001\n"
    seen.unlink()
    code, _, err = shoal("config", "edit")
    assert (code, "going on with what you have written" in err) == (Exit.OK, True)
    assert seen.read_text() == "prot = 5002\n"
    assert config.read_text() == "port = 5002\n"


def test_a_person_is_asked_whether_to_edit_again(
    shoal: Shoal, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor(tmp_path, monkeypatch, "port = 70000\n", "port = \n", "port = 5002\n")
    monkeypatch.setattr(sys, "stdin", Person("\ny\n"))
    code, _, err = shoal("config", "edit")
    assert (code, err.count("Edit again? [Y/n]")) == (Exit.OK, 2)
    assert config.read_text() == "port = 5002\n"


def test_what_changed_meanwhile_is_not_overwritten(
    shoal: Shoal, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("port = 5001\n")
    monkeypatch.setenv("VISUAL", f"sh -c 'echo threads = 2 >> \"$0\"; echo port = 5003 > {shlex.quote(str(config))}'")
    code, _, err = shoal("config", "edit")
    assert code == Exit.FAILED
    assert "has changed meanwhile" in err
    assert config.read_text() == "port = 5003\n"
    (draft,) = config.parent.glob("config.*.toml")
    assert draft.read_text() == "port = 5001\nthreads = 2\n"
    assert stat.S_IMODE(draft.stat().st_mode) == 0o600
    monkeypatch.setenv("VISUAL", "sh -c 'echo threads = 3 >> \"$0\"'")
    code, _, err = shoal("config", "edit")
    assert (code, str(draft) in err, "does not count" in err) == (Exit.OK, True, True)
    assert config.read_text() == "port = 5003\nthreads = 3\n", "what was set meanwhile is not undone by an old draft"
    assert draft.read_text() == "port = 5001\nthreads = 2\n", "and what was written is not lost"


@pytest.mark.parametrize(
    ("command", "said"), [("/no/such/editor", "cannot run the editor"), ("false", "has ended with 1")]
)
def test_an_editor_that_fails_changes_nothing(
    shoal: Shoal, config: Path, monkeypatch: pytest.MonkeyPatch, command: str, said: str
) -> None:
    config.write_text("port = 5001\n")
    monkeypatch.setenv("VISUAL", command)
    code, out, err = shoal("config", "edit")
    assert (code, out) == (Exit.FAILED, "")
    assert said in err
    assert config.read_text() == "port = 5001\n"
    assert not list(config.parent.glob("config.*.toml"))
