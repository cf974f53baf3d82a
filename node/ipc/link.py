"""The worker's end of the socket, in plain blocking calls. A frame is a 4-byte length and a message of the wire codec.

The descriptors of the shared vectors come with the first bytes that the daemon sends. `send` and `receive` may be
called from two threads at once, and `leave` and `close` from any thread: they shut the connection itself down, because
another thread may be reading from its descriptor. A process forked from ours, such as a DataLoader's, closes its copy
at once, so that the connection ends with us.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from weakref import WeakSet

from shoal.node.ipc.messages import MAX_FRAME, WORKER_PROTOCOL, Hello, Unwelcome, Welcome
from shoal.node.ipc.vectors import WRITABLE, SharedVectors
from shoal.protocol.base.errors import LocalError, RemoteError, TransportError
from shoal.protocol.base.wire import Message, decode, encode

PREFIX = 4  # bytes of the length before a frame


def frame(message: Message) -> bytes:
    """A message as the bytes of a frame, with its length."""
    body = encode(message)
    return len(body).to_bytes(PREFIX, "big") + body


def body_size(prefix: bytes) -> int:
    """The number of bytes that follow `prefix`; RemoteError if it exceeds MAX_FRAME."""
    size = int.from_bytes(prefix, "big")
    if size > MAX_FRAME:
        raise RemoteError(f"frame of {size} bytes is over the limit of {MAX_FRAME}")
    return size


_links: WeakSet[WorkerLink] = WeakSet()  # of this process


class WorkerLink:
    """A connection to the daemon, after its Welcome, with the shared vectors."""

    def __init__(self, connection: socket.socket, welcome: Welcome, vectors: SharedVectors) -> None:
        self._connection = connection
        self.welcome = welcome
        self.vectors = vectors
        _links.add(self)

    @classmethod
    def connect(cls, path: Path) -> WorkerLink:
        """Connect and say Hello; TransportError if no daemon is at `path`, LocalError if it turns us away."""
        with ExitStack() as undo:
            connection = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            try:
                connection.connect(str(path))
                connection.sendall(frame(Hello(WORKER_PROTOCOL, os.getpid())))
                prefix, descriptors, _, _ = socket.recv_fds(connection, PREFIX, len(WRITABLE))
                for descriptor in descriptors:
                    undo.callback(os.close, descriptor)
                    os.set_inheritable(descriptor, False)
                answer = read_frame(connection, prefix)
            except OSError as error:
                raise TransportError(f"no daemon at {path}: {error}") from error
            if not isinstance(answer, Welcome):
                raise LocalError(
                    answer.reason if isinstance(answer, Unwelcome) else "the daemon gave no welcome",
                    code="worker-refused",
                )
            vectors = SharedVectors.attach(descriptors, answer.sizes)
            undo.pop_all()
        return cls(connection, answer, vectors)

    def send(self, message: Message) -> None:
        """Send one frame; TransportError if the daemon is gone."""
        try:
            self._connection.sendall(frame(message))
        except OSError as error:
            raise TransportError(f"the daemon is gone: {error}") from error

    def receive(self) -> Message:
        """Wait for one frame; TransportError if the daemon is gone."""
        try:
            return read_frame(self._connection)
        except OSError as error:
            raise TransportError(f"the daemon is gone: {error}") from error

    def leave(self) -> None:
        """Send nothing more. The daemon takes that as our end and closes the connection, and `receive` raises."""
        with suppress(OSError):  # the daemon has closed it already
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End the connection, also for a thread that waits in `receive`, and close the vectors."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._drop()

    def _drop(self) -> None:
        """Close our descriptors; in another process the connection stays open."""
        self._connection.close()
        self.vectors.close()


def read_frame(connection: socket.socket, prefix: bytes = b"") -> Message:
    """The next message of a blocking socket; `prefix` was read already. ConnectionError if it is closed."""
    prefix += _read(connection, PREFIX - len(prefix))
    return decode(_read(connection, body_size(prefix)))


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionResetError("the socket was closed")
        data += more
    return bytes(data)


def _drop_all() -> None:
    for link in list(_links):
        link._drop()


os.register_at_fork(after_in_child=_drop_all)
