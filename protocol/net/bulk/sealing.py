"""Encryption on a bulk socket after its TLS handshake: each part of a frame is sealed with AES-GCM.

As in QUIC, TLS 1.3 authenticates the ends and agrees on keys, and the data is protected outside of TLS. TLS records
hold 16 KiB, and in Python's ssl each costs a system call or two and a copy; one seal for each payload avoids that
(benchmarks/carrier.py compares them).

Rules:
- A key is for one connection and one direction: both ends contribute half of its secret, inside TLS, and it is bound to
  their PeerIDs and to the direction.
- The nonce is the number of the sealed part, so a dropped, repeated, reordered or forged part does not decrypt.
- The prefix is not encrypted, but authenticated with the head (as associated data).
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.ids import PeerId, digest
from shoal.protocol.base.wire import Payload
from shoal.protocol.net.bulk.framing import PREFIX

TAG = 16
KEY = 16  # bytes: AES-128, as strong as the elliptic curve of the TLS handshake
SHARE = 32  # bytes that each end contributes to a key


def shared_key(dialler: bytes, listener: bytes) -> bytes:
    """The key from the shares of both ends."""
    return digest("bulk key", dialler, listener)[:KEY]


def connection_key(key: bytes, dialler: PeerId, listener: PeerId, listener_sends: bool) -> bytes:
    """The key bound to both peers and the direction, so that an invitation is of no use to a third peer."""
    return digest("bulk socket", key, dialler.encode(), listener.encode(), bytes((listener_sends,)))[:KEY]


def report_key(key: bytes) -> bytes:
    """The key of the receiver's reports on the same connection (flow_control.py)."""
    return digest("bulk reports", key)[:KEY]


class Sealed:
    """The cipher of one direction of a connection, with its nonces."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._number = 0

    def _nonce(self) -> bytes:
        self._number += 1
        return self._number.to_bytes(12, "big")


class Sealer(Sealed):
    """Encrypts frames, at the sender."""

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self._out = bytearray()

    def seal(self, prefix: bytes, head: bytes, payload: Payload) -> memoryview:
        """The bytes of one frame for the socket; valid until the next call."""
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
    """Decrypts frames, at the receiver; TransportError if the other end did not seal it like that."""

    def head(self, sealed: memoryview, prefix: bytes | memoryview) -> bytes:
        """The decrypted head."""
        try:
            return self._cipher.decrypt(self._nonce(), bytes(sealed), bytes(prefix))
        except InvalidTag as error:
            raise TransportError("a sealed head was altered on its way") from error

    def payload(self, sealed: memoryview, into: memoryview) -> None:
        """Decrypt a payload into its final memory."""
        try:
            self._cipher.decrypt_into(self._nonce(), sealed, None, into)
        except InvalidTag as error:
            raise TransportError("a sealed payload was altered on its way") from error
