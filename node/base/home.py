"""The home folder of one node: SHOAL_HOME, or the platform's data folder.

    identity.key   the node's private key, 0600
    token          what callers of the admin API must show, 0600
    lock           held (flock) by the daemon for as long as it lives; says which process that is, see life.py
    daemon.json    where the running daemon's admin API listens, and whether it logs into logs/
    peers.json     where the peers were that were last seen
    weights.sock   where the daemon hands out the parameters of runs, see node/handout/
    volume.json    how much has gone over the wire today, if that is limited
    logs/          daemon.log and the workers' logs
    runs/<id>/     one folder per run
    data/<digest>/ the text of runs, see node/training/data/store.py
    experts/<hash>/ experts' files, see node/experts/library.py

One daemon per home. The lock decides who that is: a pid that a crash left behind means nothing.
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
from pathlib import Path

from shoal.node.base.life import Life
from shoal.node.base.refusals import reason
from shoal.protocol.base.errors import LocalError
from shoal.protocol.net.system.private_file import create_private

MAX_LIFE = 256  # bytes
EXPORT = ".export-"  # how folders are called that the daemon tries an export in (node/run/first_weights.py)
LOCK_PATIENCE = 0.25  # a prober may hold the lock for an instant


@dataclass(frozen=True, slots=True)
class DaemonInfo:
    """What a running daemon says of itself, for its callers on this machine."""

    pid: int
    admin_host: str
    admin_port: int
    peer: str
    addresses: tuple[str, ...] = ()
    logs_here: bool = False  # into the home's daemon.log; a node in the foreground logs where it was started
    network: str = ""  # in which its loopback address means itself, see life.py; empty: unknown


@dataclass(frozen=True, slots=True)
class Home:
    """The files of one node."""

    root: Path

    @property
    def identity_key(self) -> Path:
        return self.root / "identity.key"

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
    def weights_socket(self) -> Path:
        return self.root / "weights.sock"

    @property
    def _daemon_file(self) -> Path:
        return self.root / "daemon.json"

    def run_folder(self, run: str) -> Path:
        """Where a run (its id in hex) keeps its files; it may not be there yet."""
        return self.runs / run

    def make_run_folder(self, run: str) -> Path:
        """The same, made if need be; LocalError if that is impossible."""
        return _make_folder(self.run_folder(run))

    def kept_runs(self) -> list[str]:
        """The runs (ids in hex) that are at rest here (node/run/resting.py): a file beside the state says of what."""
        files = [path for path in self.runs.glob("*/rest/*") if path.is_file() and not path.suffix]
        return sorted({path.parent.parent.name for path in files})

    def create(self) -> Home:
        """Make the folders that are missing; LocalError if that is impossible."""
        for folder in (self.root, self.logs, self.runs):
            _make_folder(folder)
        return self

    def token(self) -> str:
        """The admin API's bearer token; made on first use."""
        token = self.secret("token", lambda: secrets.token_urlsafe(32).encode()).decode("ascii", "replace").strip()
        if not (token.isascii() and token.isprintable() and token):
            raise LocalError(f"{self.root / 'token'} is damaged: delete it, and the next start makes a new one")
        return token

    def secret(self, name: str, make: Callable[[], bytes]) -> bytes:
        """The bytes of a private file; `make` fills it the first time, and only one of two racers wins."""
        path = self.root / name
        try:
            if not path.exists():
                create_private(path, make())
            mode = stat.S_IMODE(path.stat().st_mode)
            content = path.read_bytes()
        except OSError as error:
            raise LocalError(f"cannot read {path}: {reason(error)}") from error
        if mode & 0o077:
            raise LocalError(
                f"{path} can be read by others (mode {mode:o}): run `chmod 600 {path}`, or choose a SHOAL_HOME on a "
                "file system that knows modes"
            )
        if not content:
            raise LocalError(f"{path} is empty: delete it, and the next start makes a new one")
        return content

    def is_log(self, descriptor: int) -> bool:
        """Whether what is written to an open file goes to the home's log."""
        try:
            return os.path.samestat(os.fstat(descriptor), self.daemon_log.stat())
        except OSError:
            return False

    def write_daemon(self, info: DaemonInfo) -> None:
        """Publish where the daemon listens; readers see the old file or the new one, never half of it."""
        fresh = self._daemon_file.with_suffix(".new")
        try:
            fresh.write_text(json.dumps(asdict(info)), encoding="utf-8")
            fresh.replace(self._daemon_file)
        except OSError as error:
            raise LocalError(f"cannot write {self._daemon_file}: {reason(error)}") from error

    def forget_daemon(self) -> None:
        """Remove that file, as the daemon ends."""
        with suppress(OSError):  # it would be taken for no more than what a crash has left behind
            self._daemon_file.unlink(missing_ok=True)

    def read_daemon(self) -> DaemonInfo | None:
        """Where the running daemon listens; None if none runs or it is not ready yet."""
        holder = self.holder()
        if holder is None:
            return None
        try:
            content = json.loads(self._daemon_file.read_text(encoding="utf-8"))
            info = DaemonInfo(**{**content, "addresses": tuple(content["addresses"])})
        except (OSError, ValueError, TypeError, LookupError, RecursionError):
            return None
        return info if info.pid == holder else None  # else: a file that a crash left behind

    def holder(self) -> int | None:
        """The pid of the daemon that holds the lock, as it counts pids: for words, not for signals. See `holding`."""
        life = self.holding()
        return life.pid if life is not None else None

    def holding(self) -> Life | None:
        """The daemon that holds the lock; None if nobody does, LocalError if that cannot be found out."""
        try:
            handle = os.open(self.lock, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LocalError(f"cannot read {self.lock}: {reason(error)}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return Life.parse(os.read(handle, MAX_LIFE).decode("ascii", "replace"))
        except OSError as error:
            raise _cannot_lock(self.lock, error) from error
        finally:
            os.close(handle)
        return None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Become the daemon of this home; LocalError if there is another one."""
        try:
            handle = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LocalError(f"cannot write {self.lock}: {error.strerror}; choose another SHOAL_HOME") from error
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
        """Remove unfinished exports of a daemon that was killed: whole models, which nobody would ever use."""
        for path in self.root.glob(f"{EXPORT}*"):
            shutil.rmtree(path, ignore_errors=True)

    def _take(self, handle: int) -> None:
        """Take the lock, and write into it which process we are."""
        try:
            if not _lock_soon(handle):
                raise LocalError(
                    f"a node (pid {self.holder() or 'unknown'}) already runs in {self.root}: stop it with "
                    "`shoal node stop`, or choose another folder with SHOAL_HOME"
                )
        except OSError as error:
            raise _cannot_lock(self.lock, error) from error
        self.forget_daemon()  # what a crash left behind says where somebody else may listen by now
        try:
            _write(handle, str(Life.own()))
        except OSError as error:
            raise LocalError(f"cannot write {self.lock}: {reason(error)}") from error


def find_home() -> Home:
    """SHOAL_HOME, or the platform's data folder for `shoal`; LocalError if neither says where."""
    chosen = os.environ.get("SHOAL_HOME")
    try:
        if chosen:
            return Home(Path(chosen).expanduser().absolute())
        from platformdirs import user_data_path

        return Home(user_data_path("shoal", appauthor=False).absolute())
    except RuntimeError as error:  # whose home ~ is, is not known
        if chosen:
            raise LocalError(f"SHOAL_HOME={chosen}: nobody here is called so; give the folder's whole path") from error
        raise LocalError(
            f"this user (number {os.getuid()}) has no home folder: the system does not know it, and HOME is not set. "
            "Set SHOAL_HOME to a folder for the node's files"
        ) from error


def _make_folder(path: Path) -> Path:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise LocalError(f"cannot make the folder {path}: {error.strerror}; choose another SHOAL_HOME") from error
    return path


def _cannot_lock(path: Path, error: OSError) -> LocalError:
    return LocalError(
        f"cannot lock {path}, and without that two nodes could run in one folder: {error.strerror}. Choose a "
        "SHOAL_HOME on a local disk"
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
