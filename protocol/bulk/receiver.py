"""A bulk socket that we receive on: a thread that reads, opens and takes payloads apart, and hands them to the loop.

Rules:
- A payload is read into memory that is used again, and opened where it stays; nobody copies it after that.
- Nothing is read for which there is no room: then the peer's writes wait, which is all the back-pressure there is.
- No more than AHEAD payloads wait for the loop to take them.
- Whoever breaks the framing or the seal, or sends what is no message, loses the connection, and is named.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from shoal.protocol.bulk.framing import PREFIX, Sizes, run_of, sizes, unpacked
from shoal.protocol.bulk.handshake import Opened
from shoal.protocol.bulk.posts import Posts
from shoal.protocol.bulk.sealing import TAG, Opener
from shoal.protocol.bulk.slots import Slots, Tenant
from shoal.protocol.errors import RemoteError, TransportError
from shoal.protocol.ids import PeerId, RunId
from shoal.protocol.wire import Message

AHEAD = 4  # payloads

log = logging.getLogger(__name__)

Came = Callable[[RunId, Message, float, float, int], None]


class Receiver:
    """In the loop it calls `came(run, message, begin, end, bytes)`, and in the end `ended(whom to blame)`."""

    def __init__(
        self,
        opened: Opened,
        sender: PeerId,
        slots: Slots,
        tenant: Tenant,
        posts: Posts,
        came: Came,
        ended: Callable[[RemoteError | None], None],
    ) -> None:
        self._socket, self._opener = opened.socket, Opener(opened.key)
        self._sender, self._slots, self._tenant = sender, slots, tenant
        self._posts, self._came, self._ended = posts, came, ended
        self._sealed = memoryview(bytearray(1 << 20))
        self._ahead = threading.Semaphore(AHEAD)
        self._is_open = True
        self._thread = threading.Thread(target=self._run, name="bulk-in", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def close(self) -> None:
        """Read nothing more. `ended` follows."""
        self._is_open = False
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._ahead.release()

    def _run(self) -> None:
        blamed: RemoteError | None = None
        try:
            while self._is_open and self._receive():
                pass
        except RemoteError as error:
            blamed = error
        except TransportError as error:
            blamed = RemoteError(str(error), self._sender)
        except OSError:
            pass  # the connection is lost, or we have closed it
        except Exception:  # our own mistake: what comes after would be taken for what it is not
            log.exception("a payload could not be taken")
        finally:
            self._socket.close()
            self._posts.post(self._ended, blamed)

    def _receive(self) -> bool:
        """One frame; False if no more will come."""
        sealed = self._sealed
        if not self._read(sealed[: PREFIX.size]):
            return False
        prefix = bytes(sealed[: PREFIX.size])
        begin, size = time.monotonic(), sizes(prefix, self._sender)
        if not self._read(sealed[: size.head + TAG]):
            return False
        run, rest = run_of(self._opener.head(sealed[: size.head + TAG], prefix), self._sender)
        payload = self._receive_payload(size)
        if payload is None:
            return False
        message = unpacked(rest, payload, self._sender)
        del payload
        self._ahead.acquire()
        on_wire = PREFIX.size + size.head + size.payload + 2 * TAG
        self._posts.post(self._hand_on, run, message, begin, time.monotonic(), on_wire)
        return True

    def _receive_payload(self, size: Sizes) -> memoryview | None:
        """Where it is to stay."""
        slot = self._slots.take(size.payload, self._tenant)
        if slot is None:
            return None
        if len(self._sealed) < size.payload + TAG:
            self._sealed = memoryview(bytearray(size.payload + TAG))
        sealed = self._sealed[: size.payload + TAG]
        if not self._read(sealed):
            return None
        self._opener.payload(sealed, slot)
        return slot

    def _read(self, into: memoryview) -> bool:
        """Fill `into`; False if no more will come."""
        while into:
            count = self._socket.recv_into(into, 0, socket.MSG_WAITALL)
            if not count:
                return False
            into = into[count:]
        return True

    def _hand_on(self, run: RunId, message: Message, begin: float, end: float, size: int) -> None:
        self._ahead.release()
        self._came(run, message, begin, end, size)
