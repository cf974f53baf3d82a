"""The home folder: secrets stay private, and one daemon at a time, whatever a crash left behind."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shoal.node.base.atomic import replace_file
from shoal.node.base.home import EXPORT, KEPT, DaemonInfo, Home, find_home
from shoal.node.base.process_identity import ProcessIdentity
from shoal.protocol.base.errors import LocalError

HOLD = """
import sys
from pathlib import Path
from shoal.node.base.home import Home
with Home(Path(sys.argv[1])).create().locked():
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").create()


def hold(home: Home) -> subprocess.Popen[bytes]:
    """Another process that has the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(home.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"locked\n"
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    with process:
        process.kill()


def test_shoal_home_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "here"))
    assert find_home().root == tmp_path / "here"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_HOME", "there")
    assert find_home().root == tmp_path / "there"


def test_without_it_the_platform_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SHOAL_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert find_home().root.is_relative_to(tmp_path)
    assert find_home().root.name == "shoal"


def test_a_secret_is_made_once_and_private(home: Home) -> None:
    assert home.token() == home.token()
    assert len(home.token()) >= 32
    assert stat.S_IMODE((home.root / "token").stat().st_mode) == 0o600
    assert [path.name for path in home.root.iterdir() if path.name.startswith(".")] == []


def test_racers_agree_on_one_secret(home: Home) -> None:
    with ThreadPoolExecutor(8) as pool:
        seen = set(pool.map(lambda _: home.secret("key", lambda: os.urandom(8)), range(64)))
    assert len(seen) == 1


def test_a_secret_that_others_can_read_is_refused(home: Home) -> None:
    home.token()
    (home.root / "token").chmod(0o644)
    with pytest.raises(LocalError, match="chmod 600"):
        home.token()


def test_an_empty_secret_is_refused(home: Home) -> None:
    (home.root / "token").touch(0o600)
    with pytest.raises(LocalError, match="is empty"):
        home.token()


@pytest.mark.parametrize("content", [b"\xff\x80\x00", "müll".encode(), b"a\nb", b" \n"])
def test_a_token_that_is_none_is_refused(home: Home, content: bytes) -> None:
    home.token()
    (home.root / "token").write_bytes(content)
    with pytest.raises(LocalError, match="is damaged: delete it"):
        home.token()


def test_a_home_that_cannot_be_made_is_a_local_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LocalError, match="SHOAL_HOME"):
        Home(tmp_path / "file" / "home").create()


def test_run_folders_are_made(home: Home) -> None:
    assert not home.run_folder("ab" * 32).exists()
    assert home.make_run_folder("ab" * 32).is_dir()


def test_nobody_holds_a_fresh_home(home: Home) -> None:
    assert home.daemon_pid() is None
    assert home.read_daemon() is None


def test_the_second_daemon_is_refused_and_told_who_is_first(home: Home) -> None:
    first = hold(home)
    try:
        assert home.daemon_pid() == first.pid
        with pytest.raises(LocalError, match=f"pid {first.pid}"), home.locked():
            pass
    finally:
        end(first)


def test_only_a_missing_lock_means_that_the_home_is_gone(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_handles(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    home.lock.touch()
    monkeypatch.setattr("shoal.node.base.home.os.open", no_handles)
    with pytest.raises(LocalError, match="Too many open files"):
        home.daemon_pid()


def test_a_lock_that_a_crash_left_means_nothing(home: Home) -> None:
    first = hold(home)
    home.write_daemon(DaemonInfo(first.pid, "127.0.0.1", 4180, "peer"))
    first.send_signal(signal.SIGKILL)
    end(first)
    assert home.lock.read_text().split()[0] == str(first.pid)
    assert home.daemon_pid() is None
    assert home.read_daemon() is None
    with home.locked():
        assert home.daemon_pid() == os.getpid()


def test_a_reused_pid_in_the_lock_file_means_nothing(home: Home) -> None:
    home.lock.write_text("1")
    assert home.daemon_pid() is None
    with home.locked():
        assert home.daemon_process() == ProcessIdentity.own()


def test_the_lock_survives_probing(home: Home) -> None:
    with ThreadPoolExecutor(4) as pool:
        probes = [pool.submit(lambda: [home.daemon_pid() for _ in range(500)]) for _ in range(4)]
        for _ in range(20):
            with home.locked():
                pass
    assert {pid for probe in probes for pid in probe.result()} <= {None, os.getpid()}


def test_what_the_daemon_says_of_itself_is_read_while_it_lives(home: Home) -> None:
    info = DaemonInfo(os.getpid(), "127.0.0.1", 4180, "peer", ("/ip4/127.0.0.1/tcp/4101",))
    with home.locked():
        assert home.read_daemon() is None
        home.write_daemon(info)
        assert home.read_daemon() == info
    assert home.read_daemon() is None
    assert not list(home.root.glob("daemon*"))


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"pid": 1}', "\x00"])
def test_a_broken_daemon_file_is_no_daemon(home: Home, content: str) -> None:
    with home.locked():
        (home.root / "daemon.json").write_text(content)
        assert home.read_daemon() is None


def test_runs_that_wait_for_this_nodes_vote_are_found_by_what_is_said_of_them(home: Home) -> None:
    kept, others_go_on, replica = (home.make_run_folder(run * 32) for run in ("ab", "0d", "1e"))
    (kept / "log" / "state" / "round-00000003").mkdir(parents=True)
    (kept / "log" / KEPT).touch()
    (others_go_on / "log").mkdir()
    (others_go_on / "log" / "journal").touch()
    (replica / "log" / "state" / "round-00000003").mkdir(parents=True)
    home.make_run_folder("ff" * 32)
    assert home.kept_runs() == ["ab" * 32]


def test_an_export_that_a_killed_daemon_was_at_is_swept_by_the_next(home: Home) -> None:
    left = home.root / f"{EXPORT}abc"
    (left / "inner").mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"weights")
    with home.locked():
        assert not left.exists()
        assert home.runs.exists()
        theirs = home.root / f"{EXPORT}def"
        theirs.mkdir()
        with pytest.raises(LocalError, match="already runs"), home.locked():
            pytest.fail("it is locked")
        assert theirs.exists(), "that of the daemon which lives"


def test_files_that_a_killed_daemon_was_writing_are_swept_by_the_next(home: Home) -> None:
    folders = [home.root, home.make_run_folder("ab" * 32), home.data / "cd", home.experts / "ef"]
    left = []
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        kill_while_writing(folder / "file.json")
        left += list(folder.glob(".file.json.*"))
    assert len(left) == len(folders)
    others = [home.root / ".mine.new", home.root / "notes.0123abcd.new"]
    for path in (*left, *others):
        path.touch()
        os.utime(path, (0, 0))
    with home.locked():
        pass
    assert [path for path in (*left, *others) if path.exists()] == others


def test_what_a_command_is_writing_just_now_stays(home: Home) -> None:
    def pieces() -> Iterator[bytes]:
        with home.locked():
            yield b"port = 1"

    replace_file(home.config, pieces())
    assert home.config.read_bytes() == b"port = 1"


def kill_while_writing(path: Path) -> None:
    """Kill another process while it replaces a file."""
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from shoal.node.base.atomic import replace_file\n"
        "def pieces():\n"
        "    yield b'half'\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "replace_file(Path(sys.argv[1]), pieces())\n"
    )
    assert subprocess.run([sys.executable, "-c", program, str(path)]).returncode == -signal.SIGKILL


def test_where_a_folder_cannot_be_opened_nothing_is_replaced(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def no_folders(path: Path, flags: int, *mode: int) -> int:
        if Path(path).is_dir():
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(path, flags, *mode)

    home.config.write_text("old")
    before = sorted(home.root.iterdir())
    monkeypatch.setattr(os, "open", no_folders)
    with pytest.raises(OSError, match="Too many open files"):
        replace_file(home.config, [b"new"])
    assert home.config.read_text() == "old"
    assert sorted(home.root.iterdir()) == before
