"""The handshake of a bulk socket: TLS 1.3 and a one-time token, which bind the socket to the peer's libp2p connection.

Over that connection, whose peer Noise has authenticated, the listener gave the fingerprint of its certificate and a
one-time token. The dialler accepts only that certificate, and then shows the token inside TLS, so only the listener
sees it. (Python's ssl cannot request a self-signed certificate from a client.)

    dialler                                   listener
    TLS 1.3, pins the certificate
    token, half of a key  ─────────────────►  redeems the token
              ◄─────────────────────────────  half of a key
    from here on: frames one way, sealed (sealing.py), and reports the other way (flow_control.py)

A token is valid for one connection, of one peer, in one direction, for LIFETIME seconds. A peer has at most MOST; a new
one replaces the oldest. The loop gives tokens, the threads of handshakes redeem them.

A handshake blocks for LIMIT seconds at most.
"""

from __future__ import annotations

import datetime
import os
import secrets
import socket
import ssl
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.ids import Digest, PeerId, content_hash
from shoal.protocol.net.bulk.sealing import SHARE, shared_key

TOKEN_SIZE = 32  # bytes
LIFETIME = 20.0  # seconds
MOST = 32  # tokens of one peer
MOST_IN_ALL = 4096
LIMIT = 5.0  # seconds for a handshake
VALID = datetime.timedelta(days=3650)  # not checked: only the fingerprint counts
# Bytes that may wait unsent in the kernel: few, so that writing takes as long as sending, by which a line's rate is
# measured, and little is lost with a socket.
SMALL_BUFFER = ((socket.TCP_NOTSENT_LOWAT, 1 << 18),) if hasattr(socket, "TCP_NOTSENT_LOWAT") else ()
KEEP_ALIVE = (
    ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))
    if hasattr(socket, "TCP_KEEPIDLE")
    else ()
)


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a token admits."""

    peer: PeerId
    sends: bool  # whether we, the listener, send payloads on this socket


class Tokens:
    """The valid tokens. Thread-safe."""

    def __init__(self) -> None:
        self._good: OrderedDict[bytes, tuple[Ticket, float]] = OrderedDict()
        self._lock = threading.Lock()

    def give(self, now: float, ticket: Ticket) -> bytes:
        """A new token."""
        token = secrets.token_bytes(TOKEN_SIZE)
        with self._lock:
            self._forget(now, ticket.peer)
            self._good[token] = ticket, now + LIFETIME
        return token

    def redeem(self, now: float, token: bytes) -> Ticket | None:
        """The ticket of a token, once; None if the token is unknown, used, or too old."""
        with self._lock:
            ticket, until = self._good.pop(token, (None, now))
        return ticket if now < until else None

    def _forget(self, now: float, peer: PeerId) -> None:
        for token in [token for token, (_, until) in self._good.items() if until <= now]:
            del self._good[token]
        own = [token for token, (ticket, _) in self._good.items() if ticket.peer == peer]
        for token in own[: max(0, len(own) - MOST + 1)]:
            del self._good[token]
        if len(self._good) >= MOST_IN_ALL:
            self._good.popitem(last=False)


@dataclass(frozen=True, slots=True)
class ListenerCertificate:
    """A self-signed certificate, kept in memory, and its fingerprint."""

    context: ssl.SSLContext
    fingerprint: Digest


@dataclass(frozen=True, slots=True)
class BulkSocket:
    """A plain TCP socket after its handshake, and the key that seals its frames."""

    socket: socket.socket
    key: bytes


def new_certificate() -> ListenerCertificate:
    """A new certificate for a listener."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shoal")])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - VALID, now + VALID)
    certificate = made.sign(key, hashes.SHA256())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # session tickets after the handshake would be taken for frames
    _load(context, certificate.public_bytes(serialization.Encoding.PEM) + _private(key))
    return ListenerCertificate(context, content_hash(certificate.public_bytes(serialization.Encoding.DER)))


def knock(raw: socket.socket, fingerprint: Digest, token: bytes) -> BulkSocket:
    """The dialler's part, on a connected socket; TransportError if the other end has another certificate, or fails."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # pinned below
    due = time.monotonic() + LIMIT
    with _secured(raw, context) as secured:
        if content_hash(secured.getpeercert(binary_form=True) or b"") != fingerprint:
            raise TransportError("somebody else's certificate is at this address", "other-certificate")
        mine = secrets.token_bytes(SHARE)
        secured.sendall(token + mine)
        theirs = _read(secured, SHARE, due)
        return BulkSocket(_bare(secured), shared_key(mine, theirs))


def admit(
    raw: socket.socket, certificate: ListenerCertificate, redeem: Callable[[bytes], Ticket | None]
) -> tuple[BulkSocket, Ticket]:
    """The listener's part, on an accepted socket; TransportError if the peer shows no valid token."""
    due = time.monotonic() + LIMIT
    with _secured(raw, certificate.context, is_server=True) as secured:
        shown = _read(secured, TOKEN_SIZE + SHARE, due)
        ticket = redeem(shown[:TOKEN_SIZE])
        if ticket is None:
            raise TransportError("a token that is unknown, used or too old", "bad-token")
        mine = secrets.token_bytes(SHARE)
        secured.sendall(mine)
        return BulkSocket(_bare(secured), shared_key(shown[TOKEN_SIZE:], mine)), ticket


@contextmanager
def _secured(raw: socket.socket, context: ssl.SSLContext, is_server: bool = False) -> Iterator[ssl.SSLSocket]:
    """`raw` with TLS; any failure closes the socket and raises TransportError."""
    raw.settimeout(LIMIT)
    secured: ssl.SSLSocket | None = None
    try:
        secured = context.wrap_socket(raw, server_side=is_server)
        yield secured
    except (OSError, ValueError) as error:
        raise TransportError(f"the handshake has failed: {error}") from error
    finally:  # does nothing after `_bare`, which has detached the socket
        (secured or raw).close()


def _read(secured: ssl.SSLSocket, size: int, due: float) -> bytes:
    data = b""
    while len(data) < size:
        secured.settimeout(max(0.0, due - time.monotonic()))  # a limit for all bytes together
        piece = secured.recv(size - len(data))
        if not piece:
            raise TransportError("the other end has hung up")
        data += piece
    return data


def _bare(secured: ssl.SSLSocket) -> socket.socket:
    """The socket without TLS; both ends have read all that was sent in it."""
    bare = socket.socket(fileno=secured.detach())
    bare.settimeout(None)
    bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    bare.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (*KEEP_ALIVE, *SMALL_BUFFER):
        bare.setsockopt(socket.IPPROTO_TCP, option, value)
    return bare


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption())


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """Load a certificate from a temporary file that only we can read, as Python's ssl accepts nothing but files."""
    handle, path = tempfile.mkstemp()
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(pem)
        context.load_cert_chain(path)
    finally:
        os.unlink(path)
