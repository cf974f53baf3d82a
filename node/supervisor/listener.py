"""The daemon's end of the worker's socket: accepts the worker, and hands the shared vectors over.

Any process that can open the socket may be the worker, so only this user can (private_socket.py). Nothing here blocks
the event loop. After the descriptors are handed over, a worker is an ordinary pair of asyncio streams.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NoReturn

from shoal.node.ipc.link import PREFIX, body_size, frame
from shoal.node.ipc.messages import WORKER_PROTOCOL, Hello, Unwelcome, Welcome
from shoal.node.ipc.private_socket import PrivateSocket
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.wire import Message, decode

NAME = "worker.sock"
CREDENTIALS = struct.Struct("3i")  # struct ucred of Linux: process, user, group
HELLO_WITHIN = 5.0  # seconds: a worker says Hello at once; a silent client is none


class WorkerListener:
    """A listening Unix socket for workers, at `path`."""

    def __init__(self, listening: PrivateSocket) -> None:
        self._socket = listening
        self.path = listening.path

    @classmethod
    async def listening(cls, folder: Path) -> WorkerListener:
        """Listen in `folder`, once there is a free file descriptor; OSError if that is impossible."""
        return cls(await PrivateSocket.listening(folder / NAME))

    async def accept(
        self, pid: int | None, welcome: Welcome, descriptors: list[int]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, int]:
        """Wait for the worker with this `pid`, or any, and welcome it; others are turned away with a reason.

        Returns its streams and its pid in our namespace, 0 if it has none there.
        """
        while True:
            connection = await self._socket.next()
            with ExitStack() as undo, suppress(OSError, TimeoutError, RemoteError):
                undo.enter_context(connection)
                async with asyncio.timeout(HELLO_WITHIN):
                    if admitted := await _admit(connection, pid, welcome, descriptors):
                        process = _peer_pid(connection, admitted)
                        undo.pop_all()
                        return *await asyncio.open_unix_connection(sock=connection), process

    async def turn_away(self, pid: int) -> NoReturn:
        """While awaited, turn all clients away because process `pid` is the worker."""
        while True:
            connection = await self._socket.next()
            with connection, suppress(OSError, TimeoutError, RemoteError):
                async with asyncio.timeout(HELLO_WITHIN):
                    await receive_frame(connection)
                    await asyncio.get_running_loop().sock_sendall(connection, frame(Unwelcome(_taken(pid))))

    async def close(self) -> None:
        """Stop listening and remove the socket."""
        await self._socket.end()


async def receive(reader: asyncio.StreamReader) -> Message:
    """The next message of a welcomed worker; EOFError if it is gone, RemoteError if it breaks the protocol."""
    prefix = await reader.readexactly(PREFIX)
    return decode(await reader.readexactly(body_size(prefix)))


async def _admit(connection: socket.socket, pid: int | None, welcome: Welcome, descriptors: list[int]) -> Hello | None:
    """Answer a Hello; returns it, or None if the client is turned away.

    The buffer of a new socket takes the first bytes and the descriptors without blocking.
    """
    hello = await receive_frame(connection)
    refusal = _objection(hello, pid)
    data = frame(Unwelcome(refusal) if refusal else welcome)
    sent = socket.send_fds(connection, [data], [] if refusal else descriptors)
    if sent < len(data):
        await asyncio.get_running_loop().sock_sendall(connection, data[sent:])
    return hello if isinstance(hello, Hello) and not refusal else None


def _peer_pid(connection: socket.socket, hello: Hello) -> int:
    """The pid, in our namespace, of the process at the other end; 0 if it runs in a container outside of it.

    On other systems than Linux, which have no pid namespaces, the pid that the process states.
    """
    if sys.platform != "linux":
        return hello.pid
    process, _, _ = CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return int(process)


def _objection(hello: Message, pid: int | None) -> str:
    if not isinstance(hello, Hello):
        return f"the first message must be Hello, not {type(hello).__name__}"
    if hello.protocol != WORKER_PROTOCOL:
        return f"this daemon speaks version {WORKER_PROTOCOL} of the worker protocol, not {hello.protocol}"
    return _taken(pid) if pid is not None and hello.pid != pid else ""


def _taken(pid: int) -> str:
    return f"this run already has a worker, {process_in_words(pid)}"


def process_in_words(pid: int) -> str:
    """A worker's process, for people; `pid` is 0 if it has none here."""
    return f"process {pid}" if pid else "a process of another container"


async def receive_frame(connection: socket.socket) -> Message:
    """The next message of a non-blocking socket; ConnectionError if it is closed, RemoteError if it is malformed."""
    prefix = await _read(connection, PREFIX)
    return decode(await _read(connection, body_size(prefix)))


async def _read(connection: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = bytearray()
    while len(data) < size:
        more = await loop.sock_recv(connection, size - len(data))
        if not more:
            raise ConnectionResetError("the socket was closed")
        data += more
    return bytes(data)
