"""How a bulk socket begins: one-time tokens, and TLS 1.3, in which each end shows that it is the one of the libp2p
connection.

Over that connection, which Noise protects and which knows its peer, the listener gave the fingerprint of its
certificate and a one-time token. The dialler goes on only with that very certificate, and then shows the token inside
TLS: so a token is seen by nobody but who gave it. (Python's ssl cannot ask a client for a self-signed certificate.)

    dialler                                   listener
    TLS 1.3, pins the certificate
    token, half of a key  ─────────────────►  redeems the token
              ◄─────────────────────────────  half of a key
    from here on: frames one way, sealed (sealing.py), and reports the other way (flow_control.py)

A token is good for one connection, of one peer, one way, for LIFETIME seconds. A peer has MOST at a time; an older one
gives way. Any thread may use them: the loop gives them, the acceptor's threads redeem them.

The handshake blocks, for LIMIT seconds at most.
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
MOST = 32  # of one peer
MOST_IN_ALL = 4096
LIMIT = 5.0  # seconds
VALID = datetime.timedelta(days=3650)  # nobody looks: the fingerprint alone counts, and it is of this very process
# As much may wait in the kernel to be sent, beside what is on its way: so writing takes as long as sending, which is
# what a line's rate is measured by, and little is lost with a socket.
SMALL_BUFFER = ((socket.TCP_NOTSENT_LOWAT, 1 << 18),) if hasattr(socket, "TCP_NOTSENT_LOWAT") else ()
KEEP_ALIVE = (
    ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))
    if hasattr(socket, "TCP_KEEPIDLE")
    else ()
)


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a token stands for."""

    peer: PeerId
    sends: bool  # whether payloads go from us, who listen, to the peer


class Tokens:
    """The tokens that are good now."""

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
        """What a token stands for, once; None if it is unknown, used, or too old."""
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
    """What a listener shows: a certificate of its own making, kept in memory, and its fingerprint."""

    context: ssl.SSLContext
    fingerprint: Digest


@dataclass(frozen=True, slots=True)
class BulkSocket:
    """A socket after its handshake, and the key of its payloads."""

    socket: socket.socket
    key: bytes


def new_certificate() -> ListenerCertificate:
    """With a new certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shoal")])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - VALID, now + VALID)
    certificate = made.sign(key, hashes.SHA256())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # nothing may follow the handshake that the other end would take for a frame
    _load(context, certificate.public_bytes(serialization.Encoding.PEM) + _private(key))
    return ListenerCertificate(context, content_hash(certificate.public_bytes(serialization.Encoding.DER)))


def knock(raw: socket.socket, fingerprint: Digest, token: bytes) -> BulkSocket:
    """The dialler's part, on a connected socket; TransportError if the other end is not the one that gave the token."""
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
    """The listener's part, on an accepted socket; TransportError for whoever has no good token."""
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
    """`raw` with TLS; whatever goes wrong is a TransportError, and the end of the socket."""
    raw.settimeout(LIMIT)
    secured: ssl.SSLSocket | None = None
    try:
        secured = context.wrap_socket(raw, server_side=is_server)
        yield secured
    except (OSError, ValueError) as error:
        raise TransportError(f"the handshake has failed: {error}") from error
    finally:  # nothing is left to close of a socket that is bare now
        (secured or raw).close()


def _read(secured: ssl.SSLSocket, size: int, due: float) -> bytes:
    data = b""
    while len(data) < size:
        secured.settimeout(max(0.0, due - time.monotonic()))  # for all: a byte now and then would last for minutes
        piece = secured.recv(size - len(data))
        if not piece:
            raise TransportError("the other end has hung up")
        data += piece
    return data


def _bare(secured: ssl.SSLSocket) -> socket.socket:
    """The socket without TLS: both ends have read to the end of what was said in it."""
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
    """By a file that only we may read, and for a moment: Python's ssl takes nothing else."""
    handle, path = tempfile.mkstemp()
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(pem)
        context.load_cert_chain(path)
    finally:
        os.unlink(path)
