"""A secured connection: the handshake of libp2p's Noise, and then its messages in bulk.

libp2p's own session reads each message in two reads of the socket, and takes two locks and a turn of the loop for each;
that is most of what a short message costs. Here

- everything that the socket has is read and decrypted at once, and then returned without waiting;
- what the socket accepts at once is written at once. For the rest one task, `write_queued`, waits: what is written
  meanwhile follows in one piece. A cancelled writer takes nothing back, and leaves no half of a message;
- `write_now` may be called from any thread, since waking ours costs more than a short message. So the write queue is
  guarded by the lock `_leaving`, under which nobody waits; before the socket is closed `takes_no_more` is set;
- no more than a LINE may be asked for at once before there is a multiplexer, which knows what it asks for: libp2p
  would gather whatever length a stranger announces;
- bytes on a socket count for the node's owner (throttle.py); those of a connection inside another one's stream do not;
- any error in the bytes (a forged or truncated message) ends the connection: neither side could find the next message.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, cast

import trio
from cryptography.exceptions import InvalidTag
from libp2p.abc import IRawConnection, ISecureConn
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.security.noise import transport as noise
from libp2p.security.noise.io import MAX_PLAINTEXT_LENGTH, NoiseTransportReadWriter
from libp2p.security.secure_session import SecureSession
from noise.exceptions import NoiseMaxNonceError

from shoal.protocol.net.system.throttle import Throttle

READ_SIZES = 1 << 16, 1 << 18  # bytes; to have room for more costs more than to read a short message
LENGTH = 2  # bytes before each message
LINE = 1 << 14  # bytes: what libp2p says to agree on something is shorter
HANDSHAKE = 700  # bytes each way before there is a session, about, with the packets that open and close it


class Noise(noise.Transport):
    """libp2p's Noise transport, whose handshake leads to our session."""

    throttle: Throttle | None = None

    async def secure_inbound(self, conn: IRawConnection) -> ISecureConn:
        return Session(cast(SecureSession, await super().secure_inbound(conn)), self.throttle)

    async def secure_outbound(self, conn: IRawConnection, peer_id: ID) -> ISecureConn:
        return Session(cast(SecureSession, await super().secure_outbound(conn, peer_id)), self.throttle)


class Session(SecureSession):
    """What libp2p's session is, faster. For one reader; and for any number of writers."""

    def __init__(self, secured: SecureSession, throttle: Throttle | None = None) -> None:
        carrier = cast(NoiseTransportReadWriter, secured.conn)
        super().__init__(
            local_peer=secured.local_peer,
            local_private_key=secured.local_private_key,
            remote_peer=secured.remote_peer,
            remote_permanent_pubkey=secured.remote_permanent_pubkey,
            is_initiator=secured.is_initiator,
            conn=carrier,
        )
        states = cast(Any, carrier.noise_state.noise_protocol)
        self._encrypt, self._decrypt = states.cipher_state_encrypt, states.cipher_state_decrypt
        self._socket = _Socket(cast(IRawConnection, carrier.read_writer.read_write_closer))
        self._throttle = throttle if self._socket.is_real else None
        if self._throttle is not None:
            self._throttle.up.count(HANDSHAKE)
            self._throttle.down.count(HANDSHAKE)
        self._most = LINE
        self._came = bytearray()  # from the socket, not yet a whole message
        self._plain = bytearray()  # decrypted, not yet read
        self._leaving = threading.Lock()
        self._leaves = bytearray()  # to the socket, not yet encrypted
        self._unasked = 0  # bytes of it that nobody waits for
        self._sealed = bytearray()  # encrypted, and to leave before that
        self._has_queued, self._taken = trio.Event(), trio.Event()  # the socket has taken what is in both now
        self._has_writer = self._is_writing = self._takes_no_more = False

    @property
    def held(self) -> int:
        """Bytes that came and were not read yet."""
        return len(self._came) + len(self._plain)

    @property
    def own_end(self) -> tuple[str, int] | None:
        """Our host and port; None for a connection on another one's stream, or one that is gone."""
        return self._socket.own_end

    def hand_over(self, most: int) -> None:
        """To a multiplexer, which has `write_queued` write, and knows why it reads up to `most` bytes at once."""
        self._most = most
        self._token = trio.lowlevel.current_trio_token()
        self._has_writer = True

    async def read(self, n: int | None = None) -> bytes:
        """`n` bytes, or as many as there are; ConnectionClosedError once there will be no more."""
        if n == 0:
            return b""
        if (n or 1) > self._most:
            raise ConnectionClosedError(f"the peer announces {n} bytes at once")
        while len(self._plain) < (n or 1):
            await self._receive()
        plain = self._plain
        taken = bytes(memoryview(plain)[:n])
        del plain[: len(taken)]
        return taken

    async def write(self, data: bytes) -> None:
        """Return when the socket has taken `data`; ConnectionClosedError if it takes nothing more."""
        await self.write_all((data,))

    async def write_all(self, parts: Iterable[bytes | memoryview]) -> None:
        """Return when the socket has taken them all, in one piece."""
        if self._takes_no_more:
            raise ConnectionClosedError("an earlier write failed")
        with self._leaving:
            self._queue(parts)
            if self._has_writer and not self._is_writing and self._leave_at_once():
                return
        if not self._has_writer:
            await self._flush()  # one task of libp2p's that agrees on a multiplexer
            return
        taken = self._taken
        self._has_queued.set()
        await taken.wait()
        if self._takes_no_more:
            raise ConnectionClosedError("the connection takes no more")

    def write_now(self, parts: Iterable[bytes | memoryview]) -> bool:
        """Whether they were taken, all in one piece, without waiting; from any thread. If not, nothing has happened.

        What the socket does not take of them at once follows by itself; until then nothing more is taken like this.
        """
        if not self._leaving.acquire(blocking=False):
            return False
        try:
            if self._takes_no_more or self._is_writing or self._sealed or not self._has_writer:
                return False
            self._queue(parts)
            if not self._leave_at_once():
                self._token.run_sync_soon(self._wake_writer)
            return True
        finally:
            self._leaving.release()

    def write_soon(self, data: bytes) -> int:
        """Have `data` written without waiting for it; how much is waiting like that now."""
        with self._leaving:
            self._leaves += data
            self._unasked += len(data)
        self._has_queued.set()
        return self._unasked

    async def write_queued(self) -> None:
        """For good: write what there is to write."""
        try:
            while True:
                await self._has_queued.wait()
                self._has_queued = trio.Event()
                await self._flush()
        finally:
            self._take_no_more()
            self._taken.set()

    async def close(self) -> None:
        """The socket, too."""
        self._take_no_more()
        await super().close()

    def _take_no_more(self) -> None:
        """Once this has returned nobody is about to write to the socket, whose number may be another's next."""
        with self._leaving:
            self._takes_no_more = True

    def _wake_writer(self) -> None:
        self._has_queued.set()

    def _queue(self, parts: Iterable[bytes | memoryview]) -> None:
        for part in parts:
            self._leaves += part

    def _leave_at_once(self) -> bool:
        """Whether the socket takes all that there is without a turn of the loop."""
        self._seal()
        del self._sealed[: self._socket.write_now(self._sealed)]
        return not self._sealed

    async def _flush(self) -> None:
        with self._leaving:
            self._seal()
            leaving, self._sealed = self._sealed, bytearray()
            self._is_writing = True
        taken, self._taken = self._taken, trio.Event()
        try:
            await self._socket.write(leaving)
        except BaseException:  # also a cancelled one: half of a message may have left
            self._take_no_more()
            raise
        finally:
            with self._leaving:
                self._is_writing = False
            taken.set()

    def _seal(self) -> None:
        """Encrypt what leaves."""
        data, before = memoryview(self._leaves), len(self._sealed)
        self._leaves, self._unasked = bytearray(), 0
        for start in range(0, len(data), MAX_PLAINTEXT_LENGTH):
            try:
                message = self._encrypt.encrypt_with_ad(None, data[start : start + MAX_PLAINTEXT_LENGTH])
            except NoiseMaxNonceError as error:  # after 2^64 messages
                raise ConnectionClosedError(str(error)) from error
            self._sealed += len(message).to_bytes(LENGTH, "big") + message
        if self._throttle is not None:
            self._throttle.up.count(len(self._sealed) - before)

    async def _receive(self) -> None:
        """Take what the socket has, and decrypt what is whole."""
        data = await self._socket.read()
        if not data:
            raise ConnectionClosedError("the peer has closed the connection")
        if self._throttle is not None:
            self._throttle.down.count(len(data))
        self._came += data
        start = 0
        while start + LENGTH <= len(self._came):
            end = start + LENGTH + int.from_bytes(self._came[start : start + LENGTH], "big")
            if end > len(self._came):
                break
            self._plain += self._open(bytes(self._came[start + LENGTH : end]))
            start = end
        del self._came[:start]

    def _open(self, message: bytes) -> bytes:
        try:
            return cast(bytes, self._decrypt.decrypt_with_ad(None, message))
        except (InvalidTag, NoiseMaxNonceError) as error:
            raise ConnectionClosedError("a message was forged, or damaged on its way") from error


class _Socket:
    """Bytes to and from a connection: from the socket itself where there is one, past the locks of libp2p."""

    def __init__(self, raw: IRawConnection) -> None:
        stream = raw.stream if isinstance(raw, RawConnection) else raw
        self._through = stream
        self._socket = stream.stream if isinstance(stream, TrioTCPStream) else None
        self._next_size, self._may_have_more = READ_SIZES[0], True
        self.is_real = self._socket is not None

    @property
    def own_end(self) -> tuple[str, int] | None:
        if self._socket is not None:
            with suppress(OSError):  # it is gone already
                name, port, *_ = self._socket.socket.getsockname()
                return name.partition("%")[0], port
        return None

    async def read(self) -> bytes:
        """What there is; nothing at the end."""
        if self._socket is None:
            return await self._through.read(READ_SIZES[0])
        try:
            return await self._take(self._socket.socket)
        except (OSError, ValueError, trio.ClosedResourceError) as error:  # ValueError: once closed, it has no number
            raise ConnectionClosedError(str(error), transport="tcp") from error

    async def _take(self, socket: trio.socket.SocketType) -> bytes:
        """To ask a socket before it says that it has something is in vain, unless it had more than was asked for."""
        if self._may_have_more:
            await trio.lowlevel.checkpoint()
        while True:
            if not self._may_have_more:
                await trio.lowlevel.wait_readable(socket.fileno())
            try:
                data = os.read(socket.fileno(), self._next_size)
            except BlockingIOError:
                self._may_have_more = False
                continue
            self._may_have_more = len(data) == self._next_size
            self._next_size = min(max(READ_SIZES[0], 2 * len(data)), READ_SIZES[1])
            return data

    def write_now(self, data: bytearray) -> int:
        """How many bytes it took; what keeps it from taking more is for `write` to find."""
        if self._socket is None or not data:
            return 0
        try:
            return os.write(self._socket.socket.fileno(), data)
        except OSError:
            return 0

    async def write(self, data: bytearray) -> None:
        """All of it."""
        if self._socket is None:
            await self._through.write(bytes(data))
            return
        try:
            await self._socket.send_all(memoryview(data))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionClosedError(str(error), transport="tcp") from error
