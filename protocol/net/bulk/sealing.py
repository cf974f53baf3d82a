"""What goes over a bulk socket after its TLS handshake: frames, each part sealed with AES-GCM.

As in QUIC, TLS 1.3 agrees on the keys and says who is who, and the bytes are protected outside of it. TLS's own
records hold 16 KiB, and through Python's ssl each costs a system call or two and a copy, of which one seal for each
payload is free (benchmarks/carrier.py compares them).

Rules:
- A key serves one connection in one direction, and is made anew for each: both ends give half of what it comes from,
  inside TLS, and it is bound to their names and to who sends.
- A sealed part's number is its nonce, so what is dropped, doubled, reordered or forged does not open.
- The prefix travels in the clear, and is part of what the head's seal vouches for.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.ids import PeerId, digest
from shoal.protocol.base.wire import Payload
from shoal.protocol.net.bulk.framing import PREFIX

TAG = 16
KEY = 16  # bytes: AES-128, as strong as the curve that agrees on everything here
SHARE = 32  # bytes that each end gives for it


def shared_key(dialler: bytes, listener: bytes) -> bytes:
    """The key that both halves make."""
    return digest("bulk key", dialler, listener)[:KEY]


def connection_key(key: bytes, dialler: PeerId, listener: PeerId, listener_sends: bool) -> bytes:
    """The key of this connection of these two: who hands on an invitation makes two that cannot read each other."""
    return digest("bulk socket", key, dialler.encode(), listener.encode(), bytes((listener_sends,)))[:KEY]


def report_key(key: bytes) -> bytes:
    """The key of what the receiver says on the same connection (flow_control.py)."""
    return digest("bulk reports", key)[:KEY]


class Sealed:
    """One direction of one connection."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._number = 0

    def _nonce(self) -> bytes:
        self._number += 1
        return self._number.to_bytes(12, "big")


class Sealer(Sealed):
    """Of the one who sends."""

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self._out = bytearray()

    def seal(self, prefix: bytes, head: bytes, payload: Payload) -> memoryview:
        """All that is to be written for one frame; good until the next call."""
        at_head, at_payload = PREFIX.size, PREFIX.size + len(head) + TAG
        size = at_payload + len(payload) + TAG
        if len(self._out) < size:
            self._out = bytearray(size)
        out = memoryview(self._out)
        out[:at_head] = prefix
        self._cipher.encrypt_into(self._nonce(), head, prefix, out[at_head:at_payload])
        self._cipher.encrypt_into(self._nonce(), payload, None, out[at_payload:size])
        return out[:size]


class Opener(Sealed):
    """Of the one who receives; TransportError for what was not sealed like that by the other end."""

    def head(self, sealed: memoryview, prefix: bytes | memoryview) -> bytes:
        """What a sealed head holds."""
        try:
            return self._cipher.decrypt(self._nonce(), bytes(sealed), bytes(prefix))
        except InvalidTag as error:
            raise TransportError("a sealed head was altered on its way") from error

    def payload(self, sealed: memoryview, into: memoryview) -> None:
        """Open a sealed payload where it is to stay."""
        try:
            self._cipher.decrypt_into(self._nonce(), sealed, None, into)
        except InvalidTag as error:
            raise TransportError("a sealed payload was altered on its way") from error
