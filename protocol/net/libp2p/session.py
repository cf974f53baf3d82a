"""A connection secured by Noise: libp2p's handshake, and a faster session after it.

libp2p's session reads each message in two reads of the socket, and takes two locks and a turn of the loop for each;
that is most of the cost of a short message. Here

- all that the socket has is read and decrypted at once, and then returned without waiting;
- what the socket accepts at once is written at once. One task, `write_queued`, waits to write the rest, together with
  what was queued meanwhile. Cancelling a writer takes nothing back, and leaves no half message;
- `write_now` may be called from any thread, as waking ours costs more than a short message. So the write queue is
  guarded by the lock `_write_lock`, which is never held while waiting; `_takes_no_more` is set before the socket
  closes;
- until there is a multiplexer, at most LINE bytes may be asked for at once, as libp2p would collect whatever length a
  stranger announces;
- bytes on a socket count towards the owner's rates (throttle.py); those of a connection inside a stream do not;
- any invalid bytes (a forged or truncated message) end the connection, as neither side could find the next message.
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

READ_SIZES = 1 << 16, 1 << 18  # bytes, at least and at most; a larger buffer costs more than reading a short message
LENGTH = 2  # bytes before each message
LINE = 1 << 14  # bytes: all messages of libp2p's negotiations are shorter
HANDSHAKE = 700  # bytes in each direction before the session, about, with the packets that open and close TCP


class Noise(noise.Transport):
    """libp2p's Noise transport, with our session after the handshake."""

    throttle: Throttle | None = None

    async def secure_inbound(self, conn: IRawConnection) -> ISecureConn:
        return Session(cast(SecureSession, await super().secure_inbound(conn)), self.throttle)

    async def secure_outbound(self, conn: IRawConnection, peer_id: ID) -> ISecureConn:
        return Session(cast(SecureSession, await super().secure_outbound(conn, peer_id)), self.throttle)


class Session(SecureSession):
    """A faster replacement of libp2p's session, for one reader and any number of writers."""

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
        self._came = bytearray()  # received, not yet a whole message
        self._plain = bytearray()  # decrypted, not yet read
        self._write_lock = threading.Lock()
        self._queued = bytearray()  # to be written, not yet encrypted
        self._unasked = 0  # bytes of that for which no writer waits
        self._sealed = bytearray()  # encrypted, to be written before that
        self._has_queued, self._taken = trio.Event(), trio.Event()  # set when the socket has taken what is in both now
        self._has_writer = self._is_writing = self._takes_no_more = False

    @property
    def held(self) -> int:
        """Bytes that were received and not read yet."""
        return len(self._came) + len(self._plain)

    @property
    def own_end(self) -> tuple[str, int] | None:
        """Our own host and port; None for a connection inside a stream, or one that has ended."""
        return self._socket.own_end

    def hand_over(self, most: int) -> None:
        """Hand over to a multiplexer, which runs `write_queued` and may read up to `most` bytes at once."""
        self._most = most
        self._token = trio.lowlevel.current_trio_token()
        self._has_writer = True

    async def read(self, n: int | None = None) -> bytes:
        """Exactly `n` bytes, or without `n` all there are, at least one; ConnectionClosedError at the end."""
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
        """Return when the socket has taken `data`; ConnectionClosedError if the connection has ended."""
        await self.write_all((data,))

    async def write_all(self, parts: Iterable[bytes | memoryview]) -> None:
        """Like `write`, for several parts that follow each other without a gap."""
        if self._takes_no_more:
            raise ConnectionClosedError("an earlier write failed")
        with self._write_lock:
            self._queue(parts)
            if self._has_writer and not self._is_writing and self._write_at_once():
                return
        if not self._has_writer:
            await self._flush()  # libp2p's only task, which negotiates the multiplexer
            return
        taken = self._taken
        self._has_queued.set()
        await taken.wait()
        if self._takes_no_more:
            raise ConnectionClosedError("the connection takes no more")

    def write_now(self, parts: Iterable[bytes | memoryview]) -> bool:
        """Take all parts without waiting; False if that is impossible now. From any thread.

        What the socket does not take at once is written later; until then `write_now` takes nothing more.
        """
        if not self._write_lock.acquire(blocking=False):
            return False
        try:
            if self._takes_no_more or self._is_writing or self._sealed or not self._has_writer:
                return False
            self._queue(parts)
            if not self._write_at_once():
                self._token.run_sync_soon(self._wake_writer)
            return True
        finally:
            self._write_lock.release()

    def write_soon(self, data: bytes) -> int:
        """Queue `data` without waiting; returns how many bytes are queued like that now."""
        with self._write_lock:
            self._queued += data
            self._unasked += len(data)
        self._has_queued.set()
        return self._unasked

    async def write_queued(self) -> None:
        """Write what is queued, for ever; to be run by the multiplexer."""
        try:
            while True:
                await self._has_queued.wait()
                self._has_queued = trio.Event()
                await self._flush()
        finally:
            self._take_no_more()
            self._taken.set()

    async def close(self) -> None:
        """Take nothing more, and close the socket."""
        self._take_no_more()
        await super().close()

    def _take_no_more(self) -> None:
        """After this no thread writes to the socket, whose descriptor may be reused once it is closed."""
        with self._write_lock:
            self._takes_no_more = True

    def _wake_writer(self) -> None:
        self._has_queued.set()

    def _queue(self, parts: Iterable[bytes | memoryview]) -> None:
        for part in parts:
            self._queued += part

    def _write_at_once(self) -> bool:
        """Write what the socket takes at once; whether that was all."""
        self._seal()
        del self._sealed[: self._socket.write_now(self._sealed)]
        return not self._sealed

    async def _flush(self) -> None:
        with self._write_lock:
            self._seal()
            leaving, self._sealed = self._sealed, bytearray()
            self._is_writing = True
        taken, self._taken = self._taken, trio.Event()
        try:
            await self._socket.write(leaving)
        except BaseException:  # cancellation included: half of a message may be written
            self._take_no_more()
            raise
        finally:
            with self._write_lock:
                self._is_writing = False
            taken.set()

    def _seal(self) -> None:
        """Encrypt what is queued."""
        data, before = memoryview(self._queued), len(self._sealed)
        self._queued, self._unasked = bytearray(), 0
        for start in range(0, len(data), MAX_PLAINTEXT_LENGTH):
            try:
                message = self._encrypt.encrypt_with_ad(None, data[start : start + MAX_PLAINTEXT_LENGTH])
            except NoiseMaxNonceError as error:  # after 2^64 messages
                raise ConnectionClosedError(str(error)) from error
            self._sealed += len(message).to_bytes(LENGTH, "big") + message
        if self._throttle is not None:
            self._throttle.up.count(len(self._sealed) - before)

    async def _receive(self) -> None:
        """Read what the socket has, and decrypt all whole messages."""
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
    """The bytes of a connection: directly from its socket if it has one, past libp2p's locks, else through libp2p."""

    def __init__(self, raw: IRawConnection) -> None:
        stream = raw.stream if isinstance(raw, RawConnection) else raw
        self._through = stream
        self._socket = stream.stream if isinstance(stream, TrioTCPStream) else None
        self._next_size, self._may_have_more = READ_SIZES[0], True
        self.is_real = self._socket is not None

    @property
    def own_end(self) -> tuple[str, int] | None:
        if self._socket is not None:
            with suppress(OSError):  # it is closed
                name, port, *_ = self._socket.socket.getsockname()
                return name.partition("%")[0], port
        return None

    async def read(self) -> bytes:
        """The bytes there are, waiting for at least one; b"" at the end."""
        if self._socket is None:
            return await self._through.read(READ_SIZES[0])
        try:
            return await self._take(self._socket.socket)
        except (OSError, ValueError, trio.ClosedResourceError) as error:  # ValueError: a closed one has no descriptor
            raise ConnectionClosedError(str(error), transport="tcp") from error

    async def _take(self, socket: trio.socket.SocketType) -> bytes:
        """Wait until the socket is readable, and read; try at once only if the last read filled the buffer."""
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
        """Write without waiting; returns how many bytes were taken. Errors are left for `write` to find."""
        if self._socket is None or not data:
            return 0
        try:
            return os.write(self._socket.socket.fileno(), data)
        except OSError:
            return 0

    async def write(self, data: bytearray) -> None:
        """Write all of `data`; ConnectionClosedError if that fails."""
        if self._socket is None:
            await self._through.write(bytes(data))
            return
        try:
            await self._socket.send_all(memoryview(data))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionClosedError(str(error), transport="tcp") from error
