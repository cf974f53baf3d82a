"""The daemon's end of the worker's socket: its place, who is accepted, and the hand-over of the shared vectors.

Any process that can open the socket may be the worker, so only the user can (private_socket.py). Everything here is
asyncio and never blocks the loop; once the descriptors are over, a worker is an ordinary pair of streams.
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
CREDENTIALS = struct.Struct("3i")  # of Linux: process, user, group
HELLO_WITHIN = 5.0  # seconds: a worker speaks at once, so silence is a stranger


class WorkerListener:
    """A listening Unix socket in `folder`, or near it; `path` says where."""

    def __init__(self, listening: PrivateSocket) -> None:
        self._socket = listening
        self.path = listening.path

    @classmethod
    async def listening(cls, folder: Path) -> WorkerListener:
        """One that listens, as soon as there are files to be had; OSError if that cannot be."""
        return cls(await PrivateSocket.listening(folder / NAME))

    async def accept(
        self, pid: int | None, welcome: Welcome, descriptors: list[int]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, int]:
        """Wait for the worker of process `pid`, or of any, and welcome it; others are turned away with a reason.

        The process that came is the last of what is returned: its number here, 0 if it has none.
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
        """Tell all who come, as long as this is awaited, that process `pid` is the worker."""
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
    """The next message of a welcomed worker; EOFError if it is gone, RemoteError if it talks nonsense."""
    prefix = await reader.readexactly(PREFIX)
    return decode(await reader.readexactly(body_size(prefix)))


async def _admit(connection: socket.socket, pid: int | None, welcome: Welcome, descriptors: list[int]) -> Hello | None:
    """Answer a Hello, which is returned; None if whoever said it is turned away.

    The socket is new, so its buffer takes the first bytes and the descriptors at once.
    """
    hello = await receive_frame(connection)
    refusal = _objection(hello, pid)
    data = frame(Unwelcome(refusal) if refusal else welcome)
    sent = socket.send_fds(connection, [data], [] if refusal else descriptors)
    if sent < len(data):
        await asyncio.get_running_loop().sock_sendall(connection, data[sent:])
    return hello if isinstance(hello, Hello) and not refusal else None


def _peer_pid(connection: socket.socket, hello: Hello) -> int:
    """That of the process at the other end: a container counts its own anew, and what is outside of ours has none.

    Where the system does not tell, it is as the process says itself: there are no such containers.
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
    """A worker's process, for people."""
    return f"process {pid}" if pid else "a process of another container"


async def receive_frame(connection: socket.socket) -> Message:
    """The next frame of a socket that does not block; ConnectionError if it is closed, RemoteError if it is none."""
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
