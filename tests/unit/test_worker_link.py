"""The socket between daemon and worker: the handshake, the vectors that come with it, and who is refused."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from shoal.node.base.malloc import resident_bytes
from shoal.node.ipc.link import WorkerLink, body_size, frame
from shoal.node.ipc.messages import MAX_FRAME, WORKER_PROTOCOL, Contribution, Hello, Stop, Train, Welcome
from shoal.node.ipc.private_socket import PrivateSocket
from shoal.node.ipc.shm import SharedVector
from shoal.node.ipc.vectors import Sizes
from shoal.node.supervisor.listener import NAME, WorkerListener, receive
from shoal.protocol.base.errors import LocalError, RemoteError, TransportError

WELCOME = Welcome(manifest=b"m" * 65_536, sizes=Sizes(4), threads=1, device="cpu", data=(b"a", b"b\xff"))


@pytest.fixture
def vectors() -> Iterator[list[SharedVector]]:
    made = [SharedVector.create(size) for size in WELCOME.sizes.numbers]
    yield made
    for vector in made:
        vector.close()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[WorkerListener]:
    listening = PrivateSocket(tmp_path / NAME)
    yield WorkerListener(listening)
    listening.close()


async def meet(
    listener: WorkerListener, vectors: list[SharedVector], welcome: Welcome = WELCOME
) -> tuple[WorkerLink, asyncio.StreamReader, asyncio.StreamWriter]:
    """A worker (in a thread of this process) and the daemon's streams to it."""
    async with asyncio.timeout(10):
        link, (reader, writer, _) = await asyncio.gather(
            asyncio.to_thread(WorkerLink.connect, listener.path),
            listener.accept(os.getpid(), welcome, [vector.fd for vector in vectors]),
        )
    return link, reader, writer


@pytest.mark.asyncio
async def test_a_worker_gets_the_welcome_and_the_vectors(listener: WorkerListener, vectors: list[SharedVector]) -> None:
    link, reader, writer = await meet(listener, vectors)
    assert link.welcome == WELCOME
    vectors[0].array[:] = [1, 2, 3, 4]
    assert link.vectors.agreed.array.tolist() == [1, 2, 3, 4]
    link.vectors.contribution.array[:] = 5
    assert vectors[1].array.tolist() == [5, 5, 5, 5]
    link.vectors.moments.array[:] = 6
    assert vectors[2].array.tolist() == [6] * 9

    writer.write(frame(Train(1, 2, 3, 1)))
    assert await asyncio.to_thread(link.receive) == Train(1, 2, 3, 1)
    said = Contribution(order=1, round=2, steps=3, tokens=4, loss=None)
    link.send(said)
    assert await receive(reader) == said
    link.close()
    with pytest.raises(EOFError):
        await receive(reader)
    writer.close()
    await writer.wait_closed()


@pytest.mark.asyncio
async def test_a_closed_socket_tells_the_worker(listener: WorkerListener, vectors: list[SharedVector]) -> None:
    link, _, writer = await meet(listener, vectors)
    writer.close()
    await writer.wait_closed()
    with pytest.raises(TransportError, match="daemon is gone"):
        await asyncio.to_thread(link.receive)
    link.close()


@pytest.mark.asyncio
async def test_vectors_of_another_size_are_refused_and_closed(
    listener: WorkerListener, vectors: list[SharedVector]
) -> None:
    wrong = Welcome(b"", sizes=Sizes(5), threads=1, device="cpu", data=())
    before = len(os.listdir("/dev/fd"))
    refusal, streams = await asyncio.gather(
        asyncio.to_thread(WorkerLink.connect, listener.path),
        listener.accept(os.getpid(), wrong, [vector.fd for vector in vectors]),
        return_exceptions=True,
    )
    assert isinstance(refusal, LocalError)
    assert "cannot have 16 bytes" in str(refusal)
    assert isinstance(streams, tuple)
    streams[1].close()
    await streams[1].wait_closed()
    assert len(os.listdir("/dev/fd")) <= before  # fewer if something of an earlier test ends meanwhile


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (Hello(WORKER_PROTOCOL, 1), "already has a worker"),
        (Hello(9, os.getpid()), f"version {WORKER_PROTOCOL} of the worker protocol, not 9"),
        (Stop(), "must be Hello, not Stop"),
    ],
)
async def test_strangers_are_turned_away_with_a_reason_and_the_worker_still_comes(
    listener: WorkerListener, vectors: list[SharedVector], words: Hello | Stop, reason: str
) -> None:
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stranger.connect(str(listener.path))
    stranger.sendall(frame(words))
    link, _, writer = await meet(listener, vectors)
    answer = stranger.recv(4096)
    assert reason.encode() in answer
    assert stranger.recv(1) == b""
    stranger.close()
    link.close()
    writer.close()


@pytest.mark.asyncio
async def test_a_stranger_who_talks_nonsense_or_leaves_does_no_harm(
    listener: WorkerListener, vectors: list[SharedVector]
) -> None:
    for words in (b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\xc1", b""):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.connect(str(listener.path))
            stranger.sendall(words)
    link, _, writer = await meet(listener, vectors)
    link.close()
    writer.close()


def test_no_daemon_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(TransportError, match="no daemon at"):
        WorkerLink.connect(tmp_path / "worker.sock")


def test_frames_are_bounded() -> None:
    assert body_size(MAX_FRAME.to_bytes(4, "big")) == MAX_FRAME
    with pytest.raises(RemoteError, match="over the limit"):
        body_size((MAX_FRAME + 1).to_bytes(4, "big"))


def test_only_the_user_may_open_the_socket(tmp_path: Path) -> None:
    listener = PrivateSocket(tmp_path / NAME)
    assert stat.S_IMODE(listener.path.stat().st_mode) == 0o600
    listener.close()
    assert not listener.path.exists()


def test_the_socket_of_a_killed_daemon_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(tmp_path / "worker.sock"))
    PrivateSocket(tmp_path / NAME).close()


def test_a_path_that_is_too_long_gets_a_short_one_that_is_removed(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    listener = PrivateSocket(deep / NAME)
    assert len(str(listener.path)) <= 100
    folder = listener.path.parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    listener.close()
    assert not folder.exists()


ELSEWHERE = ["unshare", "--pid", "--fork", "--kill-child"]
SCRIPT = """
import os, sys
from pathlib import Path
from shoal.node.base.malloc import resident_bytes
from shoal.node.ipc.link import WorkerLink
link = WorkerLink.connect(Path(sys.argv[1]))
print(os.getpid(), os.readlink("/proc/self"), flush=True)
sys.stdin.read()
"""
NODE = """
import asyncio, os, sys
from pathlib import Path
from shoal.node.base.malloc import resident_bytes
from shoal.node.supervisor.listener import WorkerListener
from shoal.node.ipc.shm import SharedVector
from tests.unit.test_worker_link import WELCOME
async def main():
    listener = await WorkerListener.listening(Path(sys.argv[1]).parent)
    print("listening", flush=True)
    vectors = [SharedVector.create(size) for size in WELCOME.sizes.numbers]
    _, _, pid = await listener.accept(None, WELCOME, [vector.fd for vector in vectors])
    print(pid, os.getpid(), resident_bytes(1), resident_bytes() is not None, flush=True)
asyncio.run(main())
"""
needs_namespaces = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or shutil.which("unshare") is None,
    reason="DOES NOT RUN: pid namespaces take Linux, root and util-linux",
)


def started(path: Path, source: str, prefix: Sequence[str] = ()) -> subprocess.Popen[str]:
    argv = [*prefix, sys.executable, "-c", source, str(path)]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def words_of(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


@needs_namespaces
@pytest.mark.asyncio
async def test_a_script_of_another_container_is_the_process_that_it_is_here(
    listener: WorkerListener, vectors: list[SharedVector]
) -> None:
    """There it is number 1; here that is another process, whose memory is none of ours."""
    with started(listener.path, SCRIPT, ELSEWHERE) as script:
        accepting = listener.accept(None, WELCOME, [vector.fd for vector in vectors])
        _, writer, pid = await asyncio.wait_for(accepting, 60)
        there, here = map(int, await asyncio.to_thread(words_of, script))
        assert (there, pid) == (1, here)
        assert resident_bytes(pid)
        writer.close()
        script.communicate()


@needs_namespaces
def test_a_script_outside_of_our_container_has_no_number_here(tmp_path: Path) -> None:
    path = tmp_path / NAME
    with started(path, NODE, ELSEWHERE) as node:
        assert words_of(node) == ["listening"]
        with started(path, SCRIPT) as script:
            number, own, strangers, ours = words_of(node)
            assert (number, own) == ("0", "1")
            assert (strangers, ours) == ("None", "True"), "/proc is that of the machine, and 1 another process there"
            script.communicate()
