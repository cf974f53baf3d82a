"""`shoal up` around fake nodes: what it starts, notices, writes, says and cleans up, whatever goes wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.node.base.exits import Exit
from shoal.node.manifest.manifest import parse_manifest
from shoal.node.training.models.layout import Layout
from shoal.node.training.models.registry import build
from shoal.node.training.state.file import save_state
from shoal.node.training.state.shape import StateShape
from tests.bad_situations import Left, shown
from tests.unit.state_kit import state_of
from tests.unread import fill, full, read_until

FAKE = Path(__file__).parent.parent / "fake_swarm.py"
MANIFEST = """
name = "tiny"
[model]
dim = 16
layers = 1
heads = 2
kv_heads = 1
hidden = 16
context = 32
[goal]
loss_ratio = 1.5
"""
KEYS = {
    *(
        "rounds",
        "resumed_from",
        "committed",
        "peers",
        "parameters",
        "tokens",
        "initial_val_loss",
        "val_loss",
        "val_tokens",
        "alone_val_loss",
    ),
    *("joined_val_loss", "gap_recovered", "bytes_per_parameter_per_round", "replicas", "out"),
}
PATIENCE = 120.0

Up = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """Starts `shoal up` on fakes; what is left of it at the end of the test is a failure."""
    (tmp_path / "world").mkdir()
    (tmp_path / "manifest.toml").write_text(MANIFEST)
    manifest = parse_manifest(MANIFEST)
    model = build(manifest)
    shape = StateShape(Layout.of(model), manifest.rounds.state_chunk_bytes)
    save_state(state_of(shape, shape.layout.read(model)).current, tmp_path / "state")
    processes = []

    def start(
        *arguments: str, peers: int = 2, flaw: str = "", stdout: int = subprocess.PIPE, **environ: str
    ) -> subprocess.Popen[str]:
        argv = [sys.executable, str(FAKE), "up", "--peers", str(peers), "--out", str(tmp_path / "out"), *arguments]
        argv += ["--manifest", str(tmp_path / "manifest.toml")]
        fakes = {"FAKE_WORLD": str(tmp_path / "world"), "FAKE_STATE": str(tmp_path / "state"), "FAKE_FLAW": flaw}
        processes.append(
            subprocess.Popen(
                argv, env={**os.environ, **fakes, **environ}, stdout=stdout, stderr=subprocess.PIPE, text=True
            )
        )
        return processes[-1]

    yield start
    for process in processes:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=PATIENCE)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    wait_for(lambda: not left_behind(tmp_path))


def left_behind(out: Path) -> list[str]:
    """Processes that carry the test's folder in their environment or command line."""
    if Path("/proc/self/environ").exists():
        return [str(each) for each in Path("/proc").iterdir() if each.name.isdigit() and carries(each, out)]
    ps = ["ps", "axeww", "-o", "pid=,command="]
    listing = subprocess.run(ps, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True).stdout
    return [line for line in listing.splitlines() if str(out) in line]


def carries(process: Path, out: Path) -> bool:
    try:
        return any(str(out).encode() in (process / name).read_bytes() for name in ("environ", "cmdline"))
    except OSError:  # it ended meanwhile, or is not ours
        return False


def events(out: Path) -> list[dict[str, Any]]:
    metrics = out / "metrics.jsonl"
    return [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_a_death_and_an_arrival(up: Up, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    (text / "book.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    (text / "picture.png").write_bytes(b"\x89PNG\0\xff")
    flags = ["--rounds", "10", "--kill-at", "2", "--join-at", "6", "--seed", "3", "--data", str(text), "--json"]
    process = up(*flags, peers=3)
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, stderr
    (line,) = stdout.splitlines()
    answer = json.loads(line)
    assert answer.keys() == KEYS
    assert [(each["round"], each["entry"]) for each in answer["committed"]] == [(n, n) for n in range(1, 11)]
    assert [each["members"] for each in answer["committed"][:3]] == [3, 3, 2]
    assert answer["committed"][1]["contributors"] == 2
    assert answer["committed"][0].keys() == {
        *("round", "entry", "members", "contributors", "digest", "seconds", "bytes"),
    }
    assert [(each["peer"], each["outcome"]) for each in answer["peers"]] == [
        ("peer-1", "finished"),
        ("peer-2", "finished"),
        ("peer-3", "killed"),
        ("peer-4", "joined"),
    ]
    assert {each["digest"] for each in answer["peers"] if each["outcome"] != "killed"} == {"ee" * 32}
    assert answer["tokens"] == 1000
    assert answer["val_loss"] > 0
    assert answer["alone_val_loss"] is answer["gap_recovered"] is None
    assert "6 of 12 chunks sent in round 2" in stderr
    assert "1 file was skipped, because it is no UTF-8 text" in stderr
    assert "seed = 3" in (tmp_path / "out/manifest.toml").read_text()
    assert (tmp_path / "out/peers/peer-4/state.safetensors").exists()
    assert json.loads((tmp_path / "world/peer-2.args").read_text())[0].endswith("/p2p/peer-1")
    report = (tmp_path / "out/report.html").read_text()
    assert "peer-3 was killed with SIGKILL: 6 of 12 chunks sent in round 2." in report
    assert "peer-4 joined the run at round" in report
    assert "All went as it should." in report
    assert "What the model writes" in report
    assert (tmp_path / "out/loss.svg").exists()
    assert f"The report: {tmp_path / 'out/report.html'}" in stderr
    kinds = {each["kind"] for each in events(tmp_path / "out")}
    assert kinds == {"event", "round", "progress", "result"}


@pytest.mark.parametrize("times", [1, 2])  # who is impatient waits for no report
def test_ctrl_c_leaves_nothing_behind(up: Up, tmp_path: Path, times: int) -> None:
    process = up("--rounds", "1000", "--kill-at", "2", "--join-at", "none", peers=3)
    wait_for(lambda: any(each.get("event") == "killed" for each in events(tmp_path / "out")))
    assert left_behind(tmp_path)
    for _ in range(times):
        process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == Exit.INTERRUPTED
    if times == 1:
        shown("Ctrl-C while `shoal up` trains", process.returncode, stdout, Left.in_folder(tmp_path / "out"))
    wait_for(lambda: not left_behind(tmp_path))
    assert events(tmp_path / "out")[-1]["event"] == "ended"


def test_ctrl_c_during_the_imports_leaves_nothing_at_all(tmp_path: Path) -> None:
    """The real command: its fork server has begun to import torch and libp2p, which takes seconds."""
    (tmp_path / "here").mkdir()
    argv = [sys.executable, "-P", "-m", "shoal.node", "up", "--peers", "2", "--rounds", "1"]
    argv += ["--kill-at", "none", "--join-at", "none"]
    environ = os.environ | {"MARK": str(tmp_path)}
    with subprocess.Popen(
        argv, cwd=tmp_path / "here", env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_for(lambda: [*tmp_path.glob("here/runs/*/logs/fork-server.log")] != [])
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=PATIENCE)
    assert time.monotonic() < begin + 10.0, "it was deaf; a second suffices on an idle machine"
    shown("Ctrl-C while `shoal up` loads torch", process.returncode, stderr, Left.in_folder(tmp_path / "here"))
    assert stdout == ""
    wait_for(lambda: not left_behind(tmp_path))


def test_sigterm_while_starting_leaves_nothing_behind_but_a_report(up: Up, tmp_path: Path) -> None:
    process = up("--rounds", "1000", "--kill-at", "none", "--join-at", "none")
    wait_for(lambda: (tmp_path / "out/logs/peer-1.log").exists())
    process.terminate()
    stdout, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM
    assert f"The report: {tmp_path / 'out/report.html'}" in stdout
    assert "The run came to no verdict: interrupted." in (tmp_path / "out/report.html").read_text()
    wait_for(lambda: not left_behind(tmp_path))


def test_an_unplanned_death_ends_it(up: Up, tmp_path: Path) -> None:
    process = up("--rounds", "1000", "--kill-at", "none", "--join-at", "none", flaw="crash")
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "peer-2 died unexpectedly (exit status 1)" in stderr
    assert "the disk is on fire" in stderr
    assert "peer-2 died unexpectedly" in (tmp_path / "out/report.html").read_text()


@pytest.mark.slow  # test_up_swarm.py has it without processes
def test_a_run_that_has_failed_on_a_peer_ends_it_in_the_peers_words(up: Up, tmp_path: Path) -> None:
    process = up("--rounds", "1000", "--kill-at", "none", "--join-at", "none", flaw="failed")
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "the run has failed on peer-2: the disk is on fire (its log is " in stderr
    assert "the disk is on fire" in (tmp_path / "out/report.html").read_text()


@pytest.mark.slow
def test_a_failure_that_passes_ends_nothing(up: Up, tmp_path: Path) -> None:
    process = up("--rounds", "8", "--kill-at", "none", "--join-at", "none", flaw="passing")
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, stderr
    assert "failing" in [each.get("event") for each in events(tmp_path / "out")]


def test_who_stops_reading_ends_it_quietly(up: Up, tmp_path: Path) -> None:
    process = up("--rounds", "1000", "--kill-at", "none", "--join-at", "none")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(PATIENCE) == 128 + signal.SIGPIPE
    assert process.stderr.read() == ""
    assert events(tmp_path / "out")[-1]["text"] == "nobody reads what it says any more"
    assert not left_behind(tmp_path)


@pytest.fixture(params=["a pipe", pytest.param("a terminal", marks=pytest.mark.slow)])
def stuck(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    with full(request.param) as ends:
        yield ends


def test_it_goes_on_and_hears_signals_while_nobody_takes_its_words(
    up: Up, tmp_path: Path, stuck: tuple[int, int]
) -> None:
    process = up("--rounds", "1000", "--kill-at", "none", "--join-at", "none", stdout=stuck[1], TERM="xterm")
    wait_for(lambda: any(each["kind"] == "round" for each in events(tmp_path / "out")))
    process.terminate()
    assert process.wait(PATIENCE) == 128 + signal.SIGTERM
    assert events(tmp_path / "out")[-1]["event"] == "ended"
    assert (tmp_path / "out/report.html").exists()


@pytest.mark.slow
def test_who_reads_late_reads_it_all(up: Up, tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    fill(theirs)
    process = up("--rounds", "5", "--kill-at", "none", "--join-at", "none", stdout=theirs)
    os.close(theirs)
    wait_for((tmp_path / "out/report.html").exists)
    assert process.poll() is None
    said = read_until(ours, f"Logs, metrics and states: {tmp_path / 'out'}\n".encode()).decode()
    os.close(ours)
    assert process.wait(PATIENCE) == 0
    assert [f"round {number} committed" in said for number in range(1, 6)] == [True] * 5
    assert "lost" not in said


@pytest.mark.slow
def test_a_result_that_nobody_takes_does_not_keep_it_from_ending(up: Up, tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    fill(theirs)
    process = up("--rounds", "5", "--kill-at", "none", "--join-at", "none", "--json", stdout=theirs)
    wait_for((tmp_path / "out/report.html").exists)
    process.terminate()
    assert process.wait(PATIENCE) in (-signal.SIGTERM, 128 + signal.SIGTERM)
    os.close(ours)
    os.close(theirs)


def test_a_full_folder_is_refused(up: Up, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").touch()
    process = up("--rounds", "5")
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert "is not empty" in stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["precious"]
