"""What the system lacks or refuses: the command line has another way or one sentence, never a traceback."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from shoal.node.base.disk import Disk
from shoal.node.base.exits import Exit
from shoal.node.base.home import Home
from shoal.node.base.refusals import refusal
from shoal.node.client.cli import main
from shoal.protocol.base.errors import LocalError, TransportError
from shoal.protocol.messages.node import GetManifest
from shoal.protocol.net.system.identity import Identity
from tests.bad_situations import Left, contents, shown
from tests.refusing import as_nobody, in_mounts, refusing

SHOAL = [sys.executable, "-m", "shoal.node"]
START = "node start --port 0 --admin-port 0 --no-mdns --no-port-mapping --listen-host 127.0.0.1"
LIMIT = 120.0  # seconds; none of these waits for anything


def ended(
    words: str,
    environ: Mapping[str, str] | None = None,
    before: Sequence[str] = (),
    redirect: str = "",
    cwd: Path | None = None,
    prepare: Callable[[], None] | None = None,
) -> tuple[int, str]:
    """The exit code of `shoal WORDS`, and all that it said; a traceback fails the test."""
    argv = [*before, "sh", "-c", f'exec "$0" "$@" {redirect}', *SHOAL, *words.split()]
    process = subprocess.run(
        argv, env={**os.environ, **(environ or {})}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, cwd=cwd, timeout=LIMIT, check=False, preexec_fn=prepare,
    )  # fmt: skip
    said = process.stdout.decode(errors="replace")
    assert "Traceback" not in said, f"{words}: {said}"
    assert "Exception ignored" not in said, f"{words}: {said}"
    return process.returncode, said


def nobody(**environ: str) -> list[str]:
    """Before a command: as somebody without a home, with no environment but this."""
    return [*as_nobody(), "env", "-i", f"PATH={os.environ['PATH']}", *(f"{k}={v}" for k, v in environ.items())]


@pytest.mark.parametrize("words", ["status", "logs", "run leave x", "ckpt ls", "node start --foreground"])
def test_a_user_without_a_home_is_told_to_choose_one(words: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    code, said = ended(words, before=nobody(), cwd=tmp_path)
    shown("the user has no home folder", code, said, Left.in_folder(tmp_path))
    assert said.count("\n") == 1
    assert "54321" in said


def test_a_home_is_made_for_a_user_whom_the_system_does_not_know(tmp_path: Path) -> None:
    for folder in tmp_path.parents:
        folder.chmod(folder.stat().st_mode | 0o011)
    tmp_path.chmod(0o777)
    home = str(tmp_path / "home")
    try:
        assert ended(START, before=nobody(SHOAL_HOME=home), cwd=tmp_path)[0] == Exit.OK
        assert ended("status", before=nobody(SHOAL_HOME=home), cwd=tmp_path)[0] == Exit.OK
    finally:
        assert ended("node stop", before=nobody(SHOAL_HOME=home), cwd=tmp_path)[0] == Exit.OK


@pytest.mark.parametrize(
    "home",
    ["~nobody-of-this-name/x", "/proc/version", "/dev/null/x", "/proc/x", f"/tmp/{'a' * 300}", "/" + "a/" * 3000],
)
def test_a_home_that_cannot_be_is_named(
    home: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_HOME", home)
    for words in ("ckpt ls", "node start"):
        monkeypatch.setattr(sys, "argv", ["shoal", *words.split()])
        with pytest.raises(SystemExit) as stopped:
            main()
        said = capsys.readouterr().err
        assert stopped.value.code in (Exit.FAILED, Exit.NO_DAEMON), said
        assert home[:40] in said
        assert said.count("\n") == 1


def test_a_home_that_nobody_may_look_into_is_named(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0)
    before = as_nobody(reads_all=False) if os.geteuid() == 0 else []  # root may look into every folder
    for words in ("status", "node start"):
        code, said = ended(words, {"SHOAL_HOME": str(tmp_path / "locked" / "home")}, before)
        assert code == Exit.FAILED
        assert "Permission denied" in said


def test_a_home_that_is_read_only(tmp_path: Path) -> None:
    home, listing = tmp_path / "home", tmp_path / "listing"
    home.mkdir()
    before = in_mounts(f"mount -t tmpfs -o ro none {home}", listed(home, listing))
    code, said = ended("node start", {"SHOAL_HOME": str(home)}, before)
    shown("the home is on a read-only mount", code, said, Left(frozenset(listing.read_text().splitlines())))
    assert "SHOAL_HOME" in said


def listed(folder: Path, listing: Path) -> str:
    """A command that writes the names of all that is in a folder."""
    return f"ls -AR {folder} | grep -v -e '^/' -e '^$' > {listing} || true"


@pytest.mark.parametrize("words", ["status", "node start"])
def test_a_home_on_a_file_system_without_locks(words: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "lock").touch()
    before = contents(home)
    code, said = ended(words, {"SHOAL_HOME": str(home)} | refusing(tmp_path, flock=errno.ENOLCK))
    left = Left.in_folder(home, before)
    shown("the home's file system has no locks", code, said, left if words == "status" else None)
    assert "SHOAL_HOME" in said
    assert left.fresh <= {"logs", "runs"}


def test_a_full_disk_is_said_though_the_log_cannot_say_it(tmp_path: Path) -> None:
    home, listing = tmp_path / "home", tmp_path / "listing"
    home.mkdir()
    full = f"mount -t tmpfs -o size=64k none {home}; head -c 1M /dev/zero > {home}/full || true"
    code, said = ended("node start", {"SHOAL_HOME": str(home)}, in_mounts(full, listed(home, listing)))
    left = frozenset(listing.read_text().splitlines())
    shown("the home's disk is full", code, said, Left(left - {"full"}))
    assert "full" in left, "it is not the full disk that was looked at"


def test_a_port_that_only_root_may_have(tmp_path: Path) -> None:
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("DOES NOT RUN: only root can give up the right, with setpriv")
    before = ["setpriv", "--bounding-set", "-net_bind_service", "--inh-caps", "-net_bind_service"]
    home = tmp_path / "home"
    code, said = ended(f"{START} --foreground --port 80".replace("--port 0 ", ""), {"SHOAL_HOME": str(home)}, before)
    shown("the port is for root", code, said, Left.in_folder(home))


@pytest.mark.parametrize("stream", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed(stream: str, home: Path) -> None:
    for words in ("run ls", "ckpt ls"):
        code, _ = ended(words, redirect=stream)
        assert code == (Exit.NO_DAEMON if words == "run ls" else Exit.OK)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which no node runs."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_nobody_reads_what_is_printed(home: Path) -> None:
    (home / "logs").mkdir()
    (home / "logs" / "daemon.log").write_text("line\n" * 100_000)
    before = contents(home)
    for words, code in (("version", 0), ("--help", 1), ("logs -n 100000", 1), ("status", 3)):
        reading, writing = os.pipe()
        os.close(reading)
        argv, environ = [*SHOAL, *words.split()], os.environ | {"PYTHONUNBUFFERED": ""}
        process = subprocess.run(argv, env=environ, stdout=writing, stderr=subprocess.PIPE, timeout=LIMIT, check=False)
        os.close(writing)
        assert process.returncode == code
        assert process.stderr.count(b"\n") == (words == "status")
        if words.startswith("logs"):
            left = Left.in_folder(home, before)
            shown("nobody reads the output", process.returncode, process.stderr.decode(), left)


def test_what_is_printed_has_no_room(home: Path) -> None:
    code, said = ended("version", {"PYTHONUNBUFFERED": ""}, redirect="> /dev/full")
    shown("the disk of the output is full", code, said, Left.in_folder(home))
    assert said.count("\n") == 1


def test_what_is_said_beside_has_no_room(home: Path) -> None:
    assert ended("status", redirect="2> /dev/full")[0] == Exit.NO_DAEMON


@pytest.mark.parametrize("locale", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}, {"LC_ALL": "C"}])
def test_letters_that_a_terminal_does_not_know(locale: dict[str, str], tmp_path: Path) -> None:
    place = tmp_path / "caf\u00e9-\udcff"
    (place / "checkpoints" / "round-00000001").mkdir(parents=True)
    code, said = ended(f"ckpt ls {place}", locale | {"SHOAL_HOME": str(tmp_path), "PYTHONCOERCECLOCALE": "0"})
    assert code == Exit.OK
    assert "is damaged" in said
    assert said.isascii()


@pytest.mark.parametrize("words", ["ckpt ls x", "node start", "generate x y"])
def test_a_current_folder_that_is_gone(words: str, tmp_path: Path) -> None:
    environ = {"SHOAL_HOME": str(tmp_path)}
    (tmp_path / "gone").mkdir()
    before = ["sh", "-c", f'cd {tmp_path}/gone; rmdir {tmp_path}/gone; exec "$0" "$@"']
    code, said = ended(words, environ, before)
    shown("the current folder was deleted", code, said, Left.in_folder(tmp_path))
    assert "shoal: the folder in which this command was started is gone" in said


def test_a_current_folder_that_is_gone_keeps_nobody_from_asking(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    before = ["sh", "-c", f'cd {tmp_path}/gone; rmdir {tmp_path}/gone; exec "$0" "$@"']
    for words in ("status", "run ls"):
        assert ended(words, {"SHOAL_HOME": str(tmp_path)}, before)[0] == Exit.NO_DAEMON


def test_a_limit_of_file_sizes(home: Path) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    for words in ("node start", "node start --foreground"):
        process = subprocess.run([*SHOAL, *words.split()], capture_output=True, preexec_fn=limited, check=False)
        assert process.returncode == Exit.FAILED
        assert b"File too large" in process.stderr
        assert b"ulimit -f" in process.stderr


def test_a_limit_of_processes(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents:
        folder.chmod(folder.stat().st_mode | 0o011)
    before = ["prlimit", "--nproc=1", *nobody(SHOAL_HOME=str(tmp_path / "home"))]
    code, said = ended("node start", before=before)
    assert code == Exit.FAILED
    assert "ulimit -u" in said
    assert said.count("\n") == 1


def test_a_umask_that_takes_our_own_rights(home: Path) -> None:
    process = subprocess.run(
        [*SHOAL, *f"{START} --foreground --admin-host 192.0.2.1".split()],
        capture_output=True, umask=0o777, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert b"--admin-host" in process.stderr  # so it has come as far as that
    assert (home / "logs").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/x/y"), LocalError, "cannot use /x/y: Permission denied"),
        (OSError(errno.EXDEV, "Invalid cross-device link", "/a", None, "/b"), LocalError, "cannot use /a and /b"),
        (OSError(errno.EMFILE, "Too many open files"), LocalError, "ulimit -n"),
        (FileNotFoundError("No usable temporary directory found"), LocalError, "No usable temporary directory found"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), TransportError, "Connection refused"),
    ],
)
def test_what_is_said_of_a_refusal(error: OSError, kind: type[Exception], words: str) -> None:
    said = refusal(error)
    assert type(said) is kind
    assert words in str(said)


def test_a_bug_is_no_refusal() -> None:
    assert refusal(KeyError("x")) is None


@pytest.mark.parametrize(("number", "made", "kept"), [
    (errno.ENOSPC, "no-room", "no-room"), (errno.EROFS, "home-unusable", "record-unwritable"),
])  # fmt: skip
def test_what_cannot_be_made_in_a_home_blames_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, made: str, kept: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    private = ("node.base.home.create_private", "protocol.net.system.identity.create_private")
    for name in (*private, "node.base.disk.replace_file"):
        monkeypatch.setattr(f"shoal.{name}", refuse)
    makes: list[tuple[Callable[[], object], str]] = [
        (Home(tmp_path).token, made),
        (lambda: Identity.load_or_create(tmp_path / "identity.key"), made),
        (lambda: Disk(tmp_path).put("vote-0", GetManifest("x")), kept),
    ]
    for make, code in makes:
        with pytest.raises(LocalError) as refused:
            make()
        assert refused.value.code == code
