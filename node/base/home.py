"""The home folder of one node: SHOAL_HOME, or the platform's data folder.

    config.toml    the owner's settings, see settings.py; there if the owner has made any
    identity.key   the node's private key, 0600
    token          the secret that callers of the admin API must show, 0600
    lock           held (flock) by the daemon as long as it lives; names its process (process_identity.py)
    daemon.json    where the running daemon's admin API listens, and whether it logs into logs/
    peers.json     addresses of the peers that were seen last
    weights.sock   socket at which the daemon hands out the parameters of runs, see node/handout.py
    started.json   the flags and variables of the last start, see node/base/started.py
    volume.json    bytes that have gone over the wire today, if they are limited
    today.json     rounds and bytes of today, for people
    pause.json     the pause that a person has asked for, if any
    logs/          daemon.log, and stacks.txt, see node/base/stacks.py
    runs/<id>/     one folder per run, with its worker's log and stacks
    data/<digest>/ data of runs, see node/training/data/store.py
    experts/<hash>/ files of experts, see node/experts/library.py

There is one daemon per home, the one that holds the lock; a pid that a crash left behind means nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

from shoal.node.base.atomic import UNFINISHED, replace_file
from shoal.node.base.kept import KeptVote
from shoal.node.base.process_identity import ProcessIdentity
from shoal.node.base.refusals import CODES, reason
from shoal.protocol.base.errors import LocalError
from shoal.protocol.net.system.private_file import create_private

MAX_IDENTITY = 256  # bytes of a process identity in `lock`
EXPORT = ".export-"  # prefix of folders in which the daemon tries an export (node/run/first_weights.py)
ABANDONED = 60.0  # seconds since a file that is to replace another was written: commands write config.toml meanwhile
LOCK_PATIENCE = 0.25  # seconds: a process that tests the lock may hold it for an instant


@dataclass(frozen=True, slots=True)
class DaemonInfo:
    """The content of daemon.json: what callers on this machine need to know of the running daemon."""

    pid: int
    admin_host: str
    admin_port: int
    peer: str
    addresses: tuple[str, ...] = ()
    logs_here: bool = False  # True: it logs into daemon.log; a node in the foreground logs to its terminal
    network: str = ""  # `network_namespace` of the daemon: its loopback address is valid there; empty: unknown


KEPT = "kept"  # the file in a run's log by which a stopped node says that it has kept the vote


@dataclass(frozen=True, slots=True)
class Home:
    """The files of one node."""

    root: Path

    @property
    def identity_key(self) -> Path:
        return self.root / "identity.key"

    @property
    def config(self) -> Path:
        return self.root / "config.toml"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def daemon_log(self) -> Path:
        return self.logs / "daemon.log"

    @property
    def stacks(self) -> Path:
        return self.logs / "stacks.txt"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def experts(self) -> Path:
        return self.root / "experts"

    @property
    def peers(self) -> Path:
        return self.root / "peers.json"

    @property
    def volume(self) -> Path:
        return self.root / "volume.json"

    @property
    def today(self) -> Path:
        return self.root / "today.json"

    @property
    def started(self) -> Path:
        return self.root / "started.json"

    @property
    def pause(self) -> Path:
        return self.root / "pause.json"

    @property
    def weights_socket(self) -> Path:
        return self.root / "weights.sock"

    @property
    def _daemon_file(self) -> Path:
        return self.root / "daemon.json"

    def run_folder(self, run: str) -> Path:
        """The folder of a run (its id in hex); it may not exist yet."""
        return self.runs / run

    def make_run_folder(self, run: str) -> Path:
        """The folder of a run, created if need be; LocalError if that is impossible."""
        return _make_folder(self.run_folder(run))

    def kept_runs(self) -> list[str]:
        """The runs (ids in hex) that cannot go on until this node, which was stopped, is back: it has the vote."""
        return sorted(path.parent.parent.name for path in self.runs.glob(f"*/log/{KEPT}"))

    def kept_vote(self, run: str) -> KeptVote:
        """What one of them says of itself."""
        return KeptVote.read(self.run_folder(run) / "log" / KEPT)

    def create(self) -> Home:
        """Create the folders that are missing; LocalError if that is impossible."""
        for folder in (self.root, self.logs, self.runs):
            _make_folder(folder)
        return self

    def token(self) -> str:
        """The admin API's bearer token, created on first use."""
        token = self.secret("token", lambda: secrets.token_urlsafe(32).encode()).decode("ascii", "replace").strip()
        if not (token.isascii() and token.isprintable() and token):
            raise LocalError(
                f"{self.root / 'token'} is damaged: delete it, and the next start makes a new one",
                code="secret-damaged",
            )
        return token

    def secret(self, name: str, make: Callable[[], bytes]) -> bytes:
        """The bytes of a private file, created from `make()` on first use; of two racing processes one wins.

        LocalError if it cannot be read, is empty, or others may read it.
        """
        path = self.root / name
        try:
            if not path.exists():
                create_private(path, make())
            mode = stat.S_IMODE(path.stat().st_mode)
            content = path.read_bytes()
        except OSError as error:
            usual = "secret-unreadable" if os.path.exists(path) else "home-unusable"
            words = f"cannot {'read' if os.path.exists(path) else 'make'} {path}: {reason(error)}"
            raise LocalError(words, code=CODES.get(error.errno or 0, usual)) from error
        if mode & 0o077:
            raise LocalError(
                f"{path} can be read by others (mode {mode:o}): run `chmod 600 {path}`, or choose a SHOAL_HOME on a "
                "file system that knows modes",
                code="secret-open",
            )
        if not content:
            raise LocalError(f"{path} is empty: delete it, and the next start makes a new one", code="secret-damaged")
        return content

    def is_log(self, descriptor: int) -> bool:
        """Whether an open file is the home's daemon.log."""
        try:
            return os.path.samestat(os.fstat(descriptor), self.daemon_log.stat())
        except OSError:
            return False

    def write_daemon(self, info: DaemonInfo) -> None:
        """Write daemon.json atomically: readers see the old file or the new one."""
        try:
            replace_file(self._daemon_file, [json.dumps(asdict(info)).encode()])
        except OSError as error:
            raise LocalError(f"cannot write {self._daemon_file}: {reason(error)}", code="home-unusable") from error

    def forget_daemon(self) -> None:
        """Remove daemon.json, as the daemon ends."""
        with suppress(OSError):  # readers recognise a stale file by its pid
            self._daemon_file.unlink(missing_ok=True)

    def read_daemon(self) -> DaemonInfo | None:
        """What the running daemon has published; None if none runs or it is not ready yet."""
        holder = self.daemon_pid()
        if holder is None:
            return None
        try:
            content = json.loads(self._daemon_file.read_text(encoding="utf-8"))
            info = DaemonInfo(**{**content, "addresses": tuple(content["addresses"])})
        except (OSError, ValueError, TypeError, LookupError, RecursionError):
            return None
        return info if info.pid == holder else None  # else a crash has left the file behind

    def daemon_pid(self) -> int | None:
        """The pid of the running daemon in its own pid namespace, for messages; `daemon_process` is for signals."""
        process = self.daemon_process()
        return process.pid if process is not None else None

    def daemon_process(self) -> ProcessIdentity | None:
        """The process that holds the lock; None if there is none, LocalError if that cannot be found out."""
        try:
            handle = os.open(self.lock, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LocalError(f"cannot read {self.lock}: {reason(error)}", code="home-unusable") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return ProcessIdentity.parse(os.read(handle, MAX_IDENTITY).decode("ascii", "replace"))
        except OSError as error:
            raise _cannot_lock(self.lock, error) from error
        finally:
            os.close(handle)
        return None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock, as the daemon of this home; LocalError if another process holds it."""
        try:
            handle = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LocalError(
                f"cannot write {self.lock}: {error.strerror}; choose another SHOAL_HOME", code="home-unusable"
            ) from error
        try:
            self._take(handle)
            self._sweep()
            try:
                yield
            finally:
                self.forget_daemon()
                _write(handle, "")
        finally:
            os.close(handle)

    def _sweep(self) -> None:
        """Remove what a daemon that was killed has not finished: exports, which have the size of a model, and files."""
        for path in self.root.glob(f"{EXPORT}*"):
            shutil.rmtree(path, ignore_errors=True)
        below = (folder.rglob(UNFINISHED) for folder in (self.runs, self.data, self.experts))
        with suppress(OSError):  # a folder that cannot be read
            for path in (*self.root.glob(UNFINISHED), *chain(*below)):
                if path.lstat().st_mtime < time.time() - ABANDONED:
                    path.unlink(missing_ok=True)

    def _take(self, handle: int) -> None:
        """Take the lock, and write our process identity into it."""
        try:
            if not _lock_soon(handle):
                raise LocalError(
                    f"a node (pid {self.daemon_pid() or 'unknown'}) already runs in {self.root}: stop it with "
                    "`shoal node stop`, or choose another folder with SHOAL_HOME",
                    code="home-taken",
                )
        except OSError as error:
            raise _cannot_lock(self.lock, error) from error
        self.forget_daemon()  # at the address in a stale file another program may listen by now
        try:
            _write(handle, str(ProcessIdentity.own()))
        except OSError as error:
            raise LocalError(f"cannot write {self.lock}: {reason(error)}", code="home-unusable") from error


def find_home() -> Home:
    """SHOAL_HOME, or the platform's data folder for `shoal`; LocalError if there is neither."""
    chosen = os.environ.get("SHOAL_HOME")
    try:
        if chosen:
            return Home(Path(chosen).expanduser().absolute())
        from platformdirs import user_data_path

        return Home(user_data_path("shoal", appauthor=False).absolute())
    except RuntimeError as error:  # ~ cannot be resolved
        if chosen:
            raise LocalError(
                f"SHOAL_HOME={chosen}: nobody here is called so; give the folder's whole path", code="home-unknown"
            ) from error
        raise LocalError(
            f"this user (number {os.getuid()}) has no home folder: the system does not know it, and HOME is not set. "
            "Set SHOAL_HOME to a folder for the node's files",
            code="home-unknown",
        ) from error


def _make_folder(path: Path) -> Path:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise LocalError(
            f"cannot make the folder {path}: {error.strerror}; choose another SHOAL_HOME", code="home-unusable"
        ) from error
    return path


def _cannot_lock(path: Path, error: OSError) -> LocalError:
    return LocalError(
        f"cannot lock {path}, and without that two nodes could run in one folder: {error.strerror}. Choose a "
        "SHOAL_HOME on a local disk",
        code="home-unusable",
    )


def _lock_soon(handle: int) -> bool:
    deadline = time.monotonic() + LOCK_PATIENCE
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        else:
            return True


def _write(handle: int, text: str) -> None:
    os.ftruncate(handle, 0)
    os.pwrite(handle, text.encode(), 0)
