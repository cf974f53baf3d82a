"""What a file system, a kernel or a sandbox cannot do, or refuses, is done in another way."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.node.ipc.private_socket import MAX_PATH, PrivateSocket, find_socket
from tests.refusing import in_mounts, refusing

PROGRAMS = {
    "link": """
from shoal.protocol.net.system.private_file import create_private
create_private(folder / "key", b"first")
create_private(folder / "key", b"second")
assert (folder / "key").read_bytes() == b"first"
assert (folder / "key").stat().st_mode & 0o777 == 0o600
assert len(list(folder.iterdir())) == 1
""",
    "fsync_folder": """
from shoal.node.base.atomic import replace_file
replace_file(folder / "file", [b"new"])
assert (folder / "file").read_bytes() == b"new"
""",
    "memfd_create": """
from shoal.node.ipc.shm import SharedVector
with SharedVector.create(1000) as ours, SharedVector(os.dup(ours.fd), 1000) as theirs:
    ours.array[:] = 3
    assert (theirs.array == 3).all()
    ours.clear()
""",
    "bind_unix": """
import socket
from shoal.node.ipc.private_socket import PrivateSocket, find_socket
listening = PrivateSocket(folder / "x.sock")
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(str(find_socket(folder / "x.sock")))
listening.close()
assert not list(folder.iterdir())
assert not listening.path.parent.exists()
""",
}


def run(program: str, folder: Path, environ: dict[str, str], *before: str) -> None:
    folder.mkdir(exist_ok=True)
    start = f"import os\nfrom pathlib import Path\nfolder = Path({str(folder)!r})\n"
    argv = [*before, sys.executable, "-c", start + program]
    process = subprocess.run(argv, env={**os.environ, **environ}, capture_output=True, timeout=60, check=False)
    assert process.returncode == 0, process.stderr.decode()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        *(("link", each) for each in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)),
        *(("fsync_folder", each) for each in (errno.EINVAL, errno.ENOSYS)),
        *(("memfd_create", each) for each in (errno.ENOSYS, errno.EPERM)),
        *(("bind_unix", each) for each in (errno.EPERM, errno.EOPNOTSUPP, errno.EACCES)),
    ],
)
def test_a_call_that_is_refused(call: str, error: int, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    run(PROGRAMS[call], folder, refusing(tmp_path, folder, **{call: error}))


def test_neither_sockets_nor_links(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    run(PROGRAMS["bind_unix"], folder, refusing(tmp_path, folder, bind_unix=errno.EPERM, symlink=errno.EPERM))


def test_no_memory_files_and_hardly_room_in_shared_memory(tmp_path: Path) -> None:
    before = in_mounts("mount -t tmpfs -o size=4k none /dev/shm")
    program = PROGRAMS["memfd_create"].replace("1000", "100_000")
    run(program, tmp_path / "folder", refusing(tmp_path, memfd_create=errno.ENOSYS), *before)


def test_no_temporary_folder_where_they_are_looked_for(tmp_path: Path) -> None:
    read_only = (
        "mount --bind $each $each; mount -o remount,bind,ro $each"  # what lies there, as this interpreter may, stays
    )
    before = in_mounts(f"mount -t tmpfs none /dev/shm; for each in /tmp /var/tmp; do {read_only}; done")
    folder = Path("/dev/shm") / ("long" * (MAX_PATH // 4))
    program = PROGRAMS["bind_unix"].replace("listening =", "folder.mkdir(parents=True)\nlistening =")
    start = f"import os\nfrom pathlib import Path\nfolder = Path({str(folder)!r})\n"
    argv = [*before, sys.executable, "-c", start + program]
    environ = os.environ | {"TMPDIR": "/nonexistent"}
    process = subprocess.run(argv, env=environ, cwd="/proc", capture_output=True, timeout=60, check=False)
    assert process.returncode == 0, process.stderr.decode()


def test_a_temporary_folder_whose_path_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("long" * (MAX_PATH // 4))
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    listening = PrivateSocket(long / "x.sock")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(find_socket(long / "x.sock")))
    listening.close()
    assert not list(long.iterdir())


@pytest.mark.parametrize("has_links", [True, False])
def test_what_a_killed_daemon_left_in_a_temporary_folder_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    def refuse(*_: object) -> None:
        raise OSError

    if not has_links:
        monkeypatch.setattr(Path, "symlink_to", refuse)
    long, temporary = tmp_path / ("long" * (MAX_PATH // 4)), tmp_path / "t"
    long.mkdir()
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    foreign = temporary / "shoal-foreign"
    foreign.mkdir()
    (foreign / "x.sock").write_text("not a socket")
    killed = PrivateSocket(long / "x.sock")  # and never closed
    [left] = [each for each in temporary.iterdir() if each != foreign]
    listening = PrivateSocket(long / "x.sock")
    assert not left.exists()
    assert find_socket(long / "x.sock").parent.parent == temporary
    listening.close()
    (long / "x.sock").write_bytes(os.fsencode(foreign / "x.sock"))
    PrivateSocket(long / "x.sock").close()
    assert [*temporary.iterdir()] == [foreign]
    assert (foreign / "x.sock").exists()
    killed.close()
