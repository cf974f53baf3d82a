"""Both ends of a bulk socket, and messages for it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep

from shoal.protocol.base.ids import NO_DIGEST, PeerId, RunId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.averaging import Contribution
from shoal.protocol.messages.bulk import Flow
from shoal.protocol.net.bulk.framing import packed_head, prefix
from shoal.protocol.net.bulk.handshake import BulkSocket

RUN = RunId(b"r" * 32)
PEER = PeerId("peer")
KEY = b"k" * 16
LIMIT = 20.0  # seconds


def load(number: int, payload: bytes = b"payload") -> Contribution:
    """A message whose chunk is `number`."""
    return Contribution(0, 1, number, 0, 10, NO_DIGEST, payload)


def parts(message: Contribution, run: RunId = RUN) -> tuple[bytes, bytes, bytes]:
    """Prefix, head and payload of its frame."""
    head = packed_head(run, message)
    return prefix(len(head), len(message.payload), Flow.SCATTER), head, bytes(message.payload)


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Two sockets, connected with each other over the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dialled = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    return dialled, accepted


@contextmanager
def opened_pair() -> Iterator[tuple[BulkSocket, BulkSocket]]:
    """Both ends of a bulk socket after its handshake; closed at the end, if the test has not done so."""
    mine, theirs = tcp_pair()
    try:
        yield BulkSocket(mine, KEY), BulkSocket(theirs, KEY)
    finally:
        mine.close()
        theirs.close()


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until other threads have made `condition` true."""
    due = monotonic() + LIMIT
    while not condition():
        assert monotonic() < due, f"waited in vain for {what}"
        sleep(0.002)


def in_thread(function: Callable[[], object]) -> threading.Thread:
    """Run `function` in a thread beside the test."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def numbers(messages: list[Message]) -> list[int]:
    """The chunks of contributions, in their order."""
    return [each.chunk for each in messages if isinstance(each, Contribution)]
