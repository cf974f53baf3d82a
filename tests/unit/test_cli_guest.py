"""`shoal pause`, `resume`, `drain` and `restart`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.node.base import started
from shoal.node.base.exits import Exit
from shoal.node.base.home import Home, find_home
from shoal.node.base.process_identity import ProcessIdentity
from shoal.node.base.settings import FLAG, choose
from shoal.node.client import launch
from shoal.node.run.view import restoring_row
from tests.fake_service import FakeService
from tests.unit.disk_kit import fill_disk
from tests.unit.test_cli import Shoal, background, node, shoal

__all__ = ["background", "node", "shoal"]  # fixtures


def test_a_pause_is_asked_for_and_ended(shoal: Shoal, node: FakeService) -> None:
    assert shoal("pause", "--for", "2h") == (Exit.OK, "paused: you have asked for it\nits devices are free\n", "")
    assert shoal("pause")[0] == Exit.OK
    code, out, _ = shoal("resume")
    assert (code, out) == (Exit.OK, "the node goes on\n")
    assert json.loads(shoal("pause", "--json")[1])["codes"] == ["asked"]
    assert node.calls == [("pause", 7200.0), ("pause", None), ("resume",), ("pause", None)]


def test_who_pauses_a_node_is_told_what_is_not_kept(shoal: Shoal, node: FakeService) -> None:
    words = "its state is only in memory until it can be written: cannot keep the run in /a: No space left"
    node.unsaved = [{"run": "1b" * 32, "name": "stdlib", "words": words}]
    _, out, err = shoal("pause")
    assert out == "paused: you have asked for it\nits devices are free\n"
    assert err == f"stdlib (1b1b1b1b): {words}\n"
    assert json.loads(shoal("pause", "--json")[1])["unsaved"] == node.unsaved
    node.unsaved, node.has_left = [], False
    assert shoal("pause")[1].splitlines()[1:] == [
        "its devices are free",
        "its runs are still being left; `shoal status` will say if one cannot be kept",
    ]


def test_a_paused_run_is_not_waited_for_to_write_a_text(shoal: Shoal, node: FakeService) -> None:
    shoal("pause")
    node.not_open = [restoring_row("12" * 32, is_paused=True, name="ours")]
    for wanted in ("ours", "12121212"):
        code, _, err = shoal("generate", wanted, "hello")
        assert code == Exit.FAILED
        assert "shoal: the run ours is paused: you have asked for it [node-paused]" in err


@pytest.mark.parametrize(
    ("text", "said"),
    [("2", "--for 2 is no duration: write 90s, 20min, 2h or 1d"), ("0h", "more than nothing"), ("400d", "a year")],
)
def test_a_wrong_duration_is_explained(shoal: Shoal, node: FakeService, text: str, said: str) -> None:
    code, _, err = shoal("pause", "--for", text)
    assert (code, said in err, node.calls) == (Exit.USAGE, True, [])


def test_without_a_node_nothing_is_paused_drained_or_restarted(shoal: Shoal) -> None:
    for command in ("pause", "resume", "drain", "restart"):
        assert shoal(command)[0] == Exit.NO_DAEMON


def test_a_node_is_drained(shoal: Shoal, background: Home) -> None:
    assert shoal("node", "start", "--admin-port", "0")[0] == Exit.OK
    pid = background.daemon_pid()
    code, out, err = shoal("drain", "--within", "30s")
    assert (code, out) == (Exit.OK, f"stopped the node (pid {pid})\n")
    assert "waiting for the rounds under way" in err
    assert background.daemon_pid() is None


def test_a_node_that_does_not_end_when_its_time_is_over_is_stopped(
    shoal: Shoal, background: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NODE", "deaf")
    monkeypatch.setattr(launch, "STOP_PATIENCE", 0.2)
    assert shoal("node", "start", "--admin-port", "0")[0] == Exit.OK
    pid = background.daemon_pid()
    code, out, _ = shoal("drain", "--within", "1s")
    assert (code, out) == (Exit.OK, f"stopped the node (pid {pid})\n")
    assert background.daemon_pid() is None


def test_a_node_that_is_started_as_the_drained_one_ends_is_left_alone(
    shoal: Shoal, background: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shoal("node", "start", "--admin-port", "0")[0] == Exit.OK
    first = background.daemon_process()
    assert first is not None
    with monkeypatch.context() as patch:

        def begun(_: str) -> None:
            patch.setattr(Home, "daemon_process", lambda home: ProcessIdentity(1))

        patch.setattr(launch, "stop", lambda *_: pytest.fail("it stops the other node"))
        assert f"stopped the node (pid {first.pid})" in launch.drain(background, 30.0, begun)
    shoal("node", "stop")


def test_a_restart_keeps_flags_and_variables_and_reads_config_toml_anew(
    shoal: Shoal, background: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_MAX_UP", "20Mbit")
    assert shoal("node", "start", "--admin-port", "0", "--threads", "3", "--no-train")[0] == Exit.OK
    monkeypatch.delenv("SHOAL_MAX_UP")
    pid = background.daemon_pid()
    background.config.write_text('threads = 2\nmax-down = "30Mbit"\n')
    code, out, _ = shoal("restart")
    assert code == Exit.OK
    assert out.startswith(f"stopped the node (pid {pid})\n")
    assert background.daemon_pid() not in (None, pid)
    rows = json.loads(shoal("config", "show", "--json")[1])
    running = {key: row.get("running", row["value"]) for key, row in rows.items()}
    assert (running["threads"], running["no-train"], running["max-up"]) == (3, True, "20Mbit")
    assert running["max-down"] == "30Mbit"

    background.config.write_text("threads = 0\n")
    pid = background.daemon_pid()
    assert shoal("restart")[0] == Exit.USAGE
    assert background.daemon_pid() == pid, "a mistake stops nothing"


def test_a_node_in_the_foreground_is_left_to_who_started_it(shoal: Shoal, node: FakeService) -> None:
    code, _, err = shoal("restart")
    assert (code, node.calls) == (Exit.FAILED, [])
    assert "systemctl restart" in err


def test_what_a_node_was_started_with_is_kept_but_for_what_was_changed_since(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert started.recall(home) == {}
    started.keep(home, choose(tmp_path, (FLAG, {"port": 5, "max-up": 2_500_000})))
    assert started.recall(home) == {"port": 5, "max-up": "20Mbit"}
    started.forget(home, ["max-up", "threads"])
    assert started.recall(home) == {"port": 5}
    for content in ("", "[]", '{"unknown": 1}'):
        home.started.write_text(content)
        assert started.recall(home) == {}


def test_what_cannot_be_kept_costs_the_next_restart_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path)
    started.keep(home, choose(tmp_path, (FLAG, {"port": 5})))
    with monkeypatch.context() as patch:
        fill_disk(patch)
        started.keep(home, choose(tmp_path, (FLAG, {"port": 6})))
    assert started.recall(home) == {"port": 5}
    assert list(tmp_path.iterdir()) == [home.started], "and nothing unfinished is left"


def test_a_setting_of_a_running_node_is_changed_by_it(shoal: Shoal, node: FakeService) -> None:
    code, out, err = shoal("config", "set", "max-up", "5MB/s")
    assert (code, err) == (Exit.OK, "the running node has the new max-up now\n")
    assert out == f'max-up = "5MB/s" is in {find_home().config}\n'
    assert node.calls == [("settings", {"max-up": "5MB/s"})]
    assert shoal("config", "unset", "max-up")[2] == "the running node has the new max-up now\n"
    assert node.calls[1:] == [("settings", {"max-up": None})]
