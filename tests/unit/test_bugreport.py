"""`shoal bugreport`: an archive about a node that answers, hangs or is not there, with nothing private in it."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.node.base.exits import Exit
from shoal.node.base.home import Home, find_home
from shoal.node.base.stacks import WORKER_STACKS, stacks_on_request
from shoal.node.client.bugreport import evidence
from shoal.node.client.bugreport.archive import default_name, write_archive
from shoal.node.client.bugreport.report import gather, make_report, removed_in_words
from shoal.protocol.base.errors import LocalError
from tests.fake_service import PEER, RUN, FakeService
from tests.unit.test_cli import Shoal, background, node, shoal
from tests.unit.test_cli_link import Says, says
from tests.unit.test_hung_node import start_stuck

__all__ = ["background", "node", "says", "shoal"]  # fixtures

PLANTED = "Zk3vQ9xLr7TgB2mNc8WpY5dHsJ4fUa6ReXoVi1Kt0Eq"  # as `Home.token` makes them
ADDRESS = "203.0.114.77"
NOW = 1.8e9


def unpacked(path: Path) -> dict[str, str]:
    """The texts of an archive, without the name of its folder."""
    with tarfile.open(path) as tar:
        files = {member.name.partition("/")[2]: tar.extractfile(member) for member in tar.getmembers()}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_has_what_a_developer_asks_for_first(shoal: Shoal, node: FakeService) -> None:
    home = find_home()
    home.daemon_log.write_text('{"message": "hello"}\n')
    folder = home.make_run_folder(RUN)
    (folder / "worker.log").write_text("step 7\n")
    (folder / "rounds.jsonl").write_text("".join(f'{{"round": {number}}}\n' for number in range(1, 10)))
    code, out, _ = shoal("bugreport", "report.tar.gz", "--yes")
    assert code == Exit.OK
    texts = unpacked(Path("report.tar.gz"))
    for name, words in {
        "about.txt": "taken out: ",
        "machine.txt": "python: ",
        "processes.txt": f"process {os.getpid()}: ",
        "settings.txt": "port: 4101 (default)",
        "variables.txt": "SHOAL_HOME",
        "answers/status.json": '"state": "CONNECTED"',
        "answers/peers.json": '"path": "direct"',
        "answers/netcheck.json": '"verdict"',
        "answers/rounds-abababab.json": '"entry"',
        "answers/timeline-abababab-4.json": "nothing is known of round 4",
        "logs/daemon.log": "hello",
        "logs/abababab-worker.log": "step 7",
        "home.txt": "runs/abababab",
    }.items():
        assert words in texts[name], name
        assert f" {name}\n" in out
    assert [json.loads(line)["round"] for line in texts["timelines/abababab.jsonl"].splitlines()] == [5, 6, 7, 8, 9]
    assert PEER in texts["answers/status.json"]
    assert "missing" not in texts["about.txt"]
    assert "stacks.txt" not in texts


def test_peers_that_are_badly_reached_are_examined(
    shoal: Shoal, node: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"peer": f"peer-{path}", "path": path} for path in ("direct", "relayed", None)]
    monkeypatch.setattr(node, "peers", lambda: rows)
    texts = dict(evidence.answers(find_home()))
    examined = [name for name in texts if "doctor" in name]
    assert examined == ["answers/doctor-elayed.json", "answers/doctor-r-None.json"]
    assert json.loads(texts[examined[0]])[-1]["event"] == "report"


def test_nothing_planted_in_any_file_of_a_home_is_in_it(shoal: Shoal, node: FakeService) -> None:
    home = find_home()
    words = f"{PLANTED} at {ADDRESS}"
    (home.root / "identity.key").write_text(f"{PLANTED[::-1]}\n")
    home.make_run_folder(RUN)
    names = ["peers.json", "volume.json", "stray", "logs/other.txt", "data/ff/text", "experts/aa/part.safetensors"]
    names += [f"runs/{RUN}/{name}" for name in ("manifest", "vote", "rest/words", "checkpoints/round-1/state")]
    logged = ["logs/daemon.log", "logs/daemon.log.1", f"runs/{RUN}/worker.log", f"runs/{RUN}/rounds.jsonl"]
    for name in [*names, *logged]:
        (home.root / name).parent.mkdir(parents=True, exist_ok=True)
        line = f"{json.dumps({'message': words, 'path': str(home.root), 'key': PLANTED[::-1]})} {home.token()}\n"
        (home.root / name).write_text(f"{line}training text\n" if name in names else line)
    node.evidence = f"{words} {home.token()}"
    assert shoal("bugreport", "report.tar.gz", "--yes")[0] == Exit.OK
    texts = unpacked(Path("report.tar.gz"))
    everything = "".join([*texts, *texts.values()])
    for secret in (PLANTED, PLANTED[::-1], home.token(), ADDRESS, "training text", str(home.root), RUN):
        assert secret not in everything
    status, log = json.loads(texts["answers/status.json"]), texts["logs/daemon.log"].splitlines()[0]
    assert status["evidence"].split()[:3] == json.loads(log.rpartition(" ")[0])["message"].split()
    assert status["evidence"].split()[3] == log.rpartition(" ")[2]
    for name in names:
        assert name.replace(RUN, "abababab...") in texts["home.txt"]


def test_values_of_variables_and_paths_of_settings_stay_here(
    shoal: Shoal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "diary").mkdir()
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path / "diary"))
    monkeypatch.setenv("SHOAL_BOOTSTRAP", "/dns4/seed.zzz/tcp/4101")
    monkeypatch.setenv("SHOAL_PORT", "5005")
    monkeypatch.setenv("SHOAL_SECRET_OF_MINE", "open sesame")
    find_home().create().daemon_log.write_text("cannot find seed.zzz\n")
    assert shoal("bugreport", "report.tar.gz", "--yes")[0] == Exit.OK
    texts = unpacked(Path("report.tar.gz"))
    everything = "".join(texts.values())
    assert [word for word in ("diary", "seed", "sesame") if word in everything] == []
    assert "SHOAL_SECRET_OF_MINE" in texts["variables.txt"]
    for line in ("port: 5005 (environment)", "data: 1 given (environment)", "device: auto (default)"):
        assert f"{line}\n" in texts["settings.txt"]


@pytest.mark.parametrize("broken", ["nothing", "no folder", "file", "damaged"])
def test_it_works_without_a_node_and_with_a_broken_home(shoal: Shoal, broken: str) -> None:
    home = find_home()
    if broken == "file":
        home.root.write_text("a file")
    elif broken != "no folder":
        home.create()
    if broken == "damaged":
        home.runs.rmdir()
        home.runs.write_text("a file")
        home.lock.mkdir()
        (home.root / "token").mkdir()
        (home.logs / "daemon.log").mkdir()
    assert shoal("bugreport", "report.tar.gz", "--yes")[0] == Exit.OK
    texts = unpacked(Path("report.tar.gz"))
    assert "python: " in texts["machine.txt"]
    assert "missing: answers: " in texts["about.txt"]
    assert str(home.root) not in "".join(texts.values())


def test_of_a_node_that_hangs_it_has_the_stacks(
    shoal: Shoal, background: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = start_stuck(shoal, background, monkeypatch)
    monkeypatch.setattr(evidence, "ALIVE_WITHIN", 0.2)
    texts = make_report(background, NOW).texts
    assert "in _be_stuck" in texts["stacks.txt"]
    assert f"missing: answers: the node (pid {pid}) does not answer" in texts["about.txt"]
    assert f"process {pid}: " in texts["processes.txt"]
    assert "admin-port: 0 (flag of the running node)\n" in texts["settings.txt"]
    os.kill(pid, signal.SIGSTOP)
    stopped = make_report(background, NOW).texts
    assert stopped["stacks.txt"] == "no answer; its state is T\n"


HANGS = """
import os, sys, threading
from pathlib import Path
from shoal.node.base.home import Home
from shoal.node.base.stacks import stacks_on_request
home, folder = Home(Path(os.environ["SHOAL_HOME"])).create(), Path(sys.argv[1])
def _hang_as_it_begins():
    print(flush=True)
    threading.Event().wait()
def _hang_as_it_trains():
    print(flush=True)
    threading.Event().wait()
if sys.argv[2] == "node":
    with home.locked(), stacks_on_request(home.stacks):
        _hang_as_it_begins()
else:
    with stacks_on_request(folder):
        _hang_as_it_trains()
"""


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Callable[[Path, str], subprocess.Popen[bytes]]]:
    """Starts a process that hangs, as a node that has not come to its API, or as a worker with this file for stacks."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(file: Path, kind: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", HANGS, str(file), kind], stdout=subprocess.PIPE)
        processes.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_of_a_node_that_hangs_as_it_starts_and_of_its_worker_it_has_the_stacks(
    shoal: Shoal, hanging: Callable[[Path, str], subprocess.Popen[bytes]]
) -> None:
    home = find_home().create()
    files = [home.make_run_folder(run) / WORKER_STACKS for run in (RUN, "cd" * 32, "ef" * 32)]
    hanging(Path(), "node")
    hanging(files[0], "worker")
    gone = hanging(files[1], "worker")
    gone.kill()
    gone.wait()
    files[2].write_text("nonsense\n")
    texts = make_report(home, NOW).texts
    assert "in _hang_as_it_begins" in texts["stacks.txt"]
    assert "in _hang_as_it_trains" in texts["stacks-abababab-worker.txt"]
    assert [name for name in texts if name.startswith("stacks")] == ["stacks-abababab-worker.txt", "stacks.txt"]


def test_of_a_node_that_is_ending_it_has_the_stacks(shoal: Shoal, node: FakeService) -> None:
    with stacks_on_request(find_home().stacks):
        assert "stacks.txt" not in dict(evidence.stacks(find_home()))
        node.ending = True
        assert "most recent call first" in dict(evidence.stacks(find_home()))["stacks.txt"]


def test_the_end_of_a_log_begins_with_a_whole_line(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(f"{PLANTED}\nlast\n")
    assert evidence.end_of(log, 30) == "last\n"
    assert evidence.end_of(log, 3) == ""
    assert evidence.end_of(log) == f"{PLANTED}\nlast\n"
    assert evidence.end_of(tmp_path / "none") == "cannot be read: No such file or directory\n"


def test_a_part_that_fails_or_hangs_costs_only_itself() -> None:
    over = threading.Event()

    def hangs() -> evidence.Texts:
        yield "first", "came"
        over.wait()

    def fails() -> evidence.Texts:
        raise ZeroDivisionError
        yield

    try:
        found = gather({"slow": hangs, "broken": fails, "good": lambda: iter([("file", "text")])}, 0.2)
    finally:
        over.set()
    assert found.texts == {"first": "came", "file": "text"}
    assert sorted(found.missing) == ["broken: ZeroDivisionError", "slow: not there after 0 s, as if a disk hung"]


# -- the command ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("typed", "written"), [("\n", True), ("y\n", True), ("n\n", False), ("", False)])
def test_a_person_sees_what_is_in_it_and_is_asked(shoal: Shoal, says: Says, typed: str, written: bool) -> None:
    says(typed)
    code, out, _ = shoal("bugreport")
    assert code == Exit.OK
    assert out.index(" about.txt\n") < out.index("\ntaken out: ") < out.index("Write shoal-bugreport-")
    files = list(Path.cwd().glob("shoal-bugreport-*.tar.gz"))
    assert len(files) == written
    assert ("nothing was written" in out) is not written
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_scripts_say_yes_or_look(shoal: Shoal) -> None:
    code, out, err = shoal("bugreport")
    assert (code, out) == (Exit.USAGE, "")
    assert "--yes" in err
    code, out, _ = shoal("bugreport", "--show")
    assert code == Exit.OK
    assert "==> machine.txt <==\n" in out
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, lambda path: path.symlink_to("nowhere")])
def test_nothing_is_overwritten(shoal: Shoal, make: Callable[[Path], None]) -> None:
    make(Path("taken.tar.gz"))
    code, _, err = shoal("bugreport", "taken.tar.gz", "--yes")
    assert code == Exit.FAILED
    assert err == "shoal: taken.tar.gz is there already: choose another name for the report [already-there]\n"
    with pytest.raises(LocalError, match="there already"):
        write_archive(Path("taken.tar.gz"), {}, NOW)
    assert shoal("bugreport", "nowhere/x.tar.gz", "--yes")[0] == Exit.FAILED


def test_an_archive_names_nobody(tmp_path: Path) -> None:
    size = write_archive(tmp_path / default_name(NOW), {"a/b.txt": "text\n"}, NOW)
    (path,) = (path for path in tmp_path.iterdir() if path.name.startswith("shoal-bugreport-2027-01-1"))
    assert path.stat().st_size == size
    with tarfile.open(path) as tar:
        (entry,) = tar.getmembers()
    assert (entry.uid, entry.gid, entry.uname, entry.gname, entry.mode) == (0, 0, "", "", 0o600)
    assert entry.name == f"{path.name.removesuffix('.tar.gz')}/a/b.txt"


def test_what_was_taken_out_is_said_in_words() -> None:
    assert removed_in_words({}) == "nothing"
    assert removed_in_words({"public": 3, "secret": 1}) == "1 token or password, 3 public addresses"
