"""A secured connection: the handshake of libp2p's Noise, and then its messages in bulk.

libp2p's own session reads each message in two reads of the socket, and takes two locks and a turn of the loop for each;
that is most of what a short message costs. Here

- all that the socket has is taken and decrypted at once; what comes of it is read without waiting;
- a write encrypts at once, so that the order of calls is the order of nonces; what is written while another write is
  on its way leaves after it in one piece;
- whatever goes wrong with the bytes (a message that is forged, or cut short, or a write that was cancelled halfway)
  ends the connection: neither side could find the next message.
"""

from __future__ import annotations

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

READ_SIZE = 1 << 18
LENGTH = 2  # bytes before each message


class Noise(noise.Transport):
    """Whoever has shaken hands talks over our session."""

    async def secure_inbound(self, conn: IRawConnection) -> ISecureConn:
        return Session(cast(SecureSession, await super().secure_inbound(conn)))

    async def secure_outbound(self, conn: IRawConnection, peer_id: ID) -> ISecureConn:
        return Session(cast(SecureSession, await super().secure_outbound(conn, peer_id)))


class Session(SecureSession):
    """What libp2p's session is, faster. For one reader; and for any number of writers."""

    def __init__(self, secured: SecureSession) -> None:
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
        self._came = bytearray()  # from the socket, not yet a whole message
        self._plain = bytearray()  # decrypted, not yet read
        self._leaves = bytearray()  # encrypted, for the next write to the socket
        self._writing = trio.Lock()
        self._has_queued = trio.Event()
        self._queued = 0  # bytes of what leaves that no writer waits for
        self._is_broken = False

    @property
    def held(self) -> int:
        """Bytes that came and were not read yet."""
        return len(self._came) + len(self._plain)

    async def read(self, n: int | None = None) -> bytes:
        """`n` bytes, or as many as there are; ConnectionClosedError once there will be no more."""
        if n == 0:
            return b""
        while len(self._plain) < (n or 1):
            await self._receive()
        plain = self._plain
        taken = bytes(memoryview(plain)[:n])
        del plain[: len(taken)]
        return taken

    async def write(self, data: bytes) -> None:
        """Return when the socket has taken `data`; ConnectionClosedError if it takes nothing more."""
        self._seal(memoryview(data))
        try:
            self._writing.acquire_nowait()  # without a turn of the loop
        except trio.WouldBlock:
            await self._writing.acquire()
        try:
            await self._flush()
        finally:
            self._writing.release()

    def write_soon(self, data: bytes) -> int:
        """Have `data` written by `write_queued`; how much waits for that now."""
        self._seal(memoryview(data))
        self._queued += len(data)
        self._has_queued.set()
        return self._queued

    async def write_queued(self) -> None:
        """For good: write what `write_soon` queues."""
        while True:
            await self._has_queued.wait()
            self._has_queued = trio.Event()
            async with self._writing:
                await self._flush()

    def _seal(self, data: memoryview) -> None:
        for start in range(0, len(data), MAX_PLAINTEXT_LENGTH):
            try:
                message = self._encrypt.encrypt_with_ad(None, data[start : start + MAX_PLAINTEXT_LENGTH])
            except NoiseMaxNonceError as error:  # after 2^64 messages
                raise ConnectionClosedError(str(error)) from error
            self._leaves += len(message).to_bytes(LENGTH, "big") + message

    async def _flush(self) -> None:
        """Write all that is there; another write may have taken it along."""
        if self._is_broken:
            raise ConnectionClosedError("an earlier write failed")
        while self._leaves:
            leaving, self._leaves, self._queued, self._is_broken = self._leaves, bytearray(), 0, True
            await self._socket.write(leaving)
            self._is_broken = False

    async def _receive(self) -> None:
        """Take what the socket has, and decrypt what is whole."""
        data = await self._socket.read(READ_SIZE)
        if not data:
            raise ConnectionClosedError("the peer has closed the connection")
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

    async def read(self, most: int) -> bytes:
        """What there is; nothing at the end."""
        if self._socket is None:
            return await self._through.read(most)
        try:
            return bytes(await self._socket.receive_some(most))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionClosedError(str(error), transport="tcp") from error

    async def write(self, data: bytearray) -> None:
        """All of it."""
        if self._socket is None:
            await self._through.write(bytes(data))
            return
        try:
            await self._socket.send_all(memoryview(data))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionClosedError(str(error), transport="tcp") from error
