"""The handshake, on real sockets: who is let in, who is not, and that nobody learns a token who should not."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress

import pytest

from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.ids import Digest
from shoal.protocol.net.bulk import handshake
from shoal.protocol.net.bulk.framing import PREFIX
from shoal.protocol.net.bulk.handshake import (
    LIFETIME,
    TOKEN_SIZE,
    BulkSocket,
    ListenerCertificate,
    Ticket,
    Tokens,
    admit,
    knock,
    new_certificate,
)
from shoal.protocol.net.bulk.sealing import SHARE, Opener, Sealer
from tests.unit.bulk.kit import PEER, load, parts, tcp_pair

TICKET = Ticket(PEER, sends=False)
SHORT = 0.3  # seconds


@pytest.fixture(scope="module")
def door() -> ListenerCertificate:
    return new_certificate()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


class Listener:
    """Admits one guest at `door`, and keeps what it was shown."""

    def __init__(self, door: ListenerCertificate, pool: ThreadPoolExecutor, now: float = 0.0) -> None:
        self.door, self.tokens, self.now = door, Tokens(), now
        self.shown: list[bytes] = []
        self.guest, self.raw = tcp_pair()
        self.admitted: Future[tuple[BulkSocket, Ticket]] = pool.submit(admit, self.raw, door, self._redeem)

    def _redeem(self, token: bytes) -> Ticket | None:
        self.shown.append(token)
        return self.tokens.redeem(self.now, token)

    def refused(self) -> str:
        """Why nobody was let in; and that the guest has been hung up on."""
        with pytest.raises(TransportError) as caught:
            self.admitted.result(10)
        if self.guest.fileno() >= 0:  # else TLS has it, or it is closed
            self.guest.settimeout(10)
            with suppress(ConnectionError):
                while self.guest.recv(1000):
                    pass
            self.guest.close()
        return caught.value.code


def client(guest: socket.socket, most: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode, context.maximum_version = False, ssl.CERT_NONE, most
    guest.settimeout(10)
    return context.wrap_socket(guest)


def test_who_has_a_token_is_let_in_and_both_have_one_key(door: ListenerCertificate, pool: ThreadPoolExecutor) -> None:
    listener = Listener(door, pool)
    token = listener.tokens.give(0.0, TICKET)
    mine = knock(listener.guest, door.fingerprint, token)
    theirs, ticket = listener.admitted.result(10)
    assert ticket == TICKET
    assert mine.key == theirs.key
    sealed = Sealer(mine.key).seal(*parts(load(1)))
    mine.socket.sendall(sealed)
    came = memoryview(bytearray(len(sealed)))
    assert theirs.socket.recv_into(came, 0, socket.MSG_WAITALL) == len(sealed)
    head = parts(load(1))[1]
    at = PREFIX.size
    assert Opener(theirs.key).head(came[at : at + len(head) + 16], came[:at]) == head
    for each in (mine, theirs):
        assert each.socket.gettimeout() is None
        assert each.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert each.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        each.socket.close()


def test_each_connection_has_a_key_of_its_own(door: ListenerCertificate, pool: ThreadPoolExecutor) -> None:
    keys = set[bytes]()
    for _ in range(3):
        listener = Listener(door, pool)
        opened = knock(listener.guest, door.fingerprint, listener.tokens.give(0.0, TICKET))
        keys.add(opened.key)
        opened.socket.close()
        listener.admitted.result(10)[0].socket.close()
    assert len(keys) == 3


def test_somebody_elses_certificate_is_refused_before_the_token_is_shown(
    door: ListenerCertificate, pool: ThreadPoolExecutor
) -> None:
    listener = Listener(new_certificate(), pool)
    token = listener.tokens.give(0.0, TICKET)
    with pytest.raises(TransportError, match="certificate") as caught:
        knock(listener.guest, door.fingerprint, token)
    assert caught.value.code == "other-certificate"
    listener.refused()
    assert listener.shown == []
    assert listener.guest.fileno() == -1
    assert listener.tokens.redeem(0.0, token) == TICKET, "nobody has used it"


def test_doors_differ() -> None:
    assert new_certificate().fingerprint != new_certificate().fingerprint


@pytest.mark.parametrize("kind", ["unknown", "used", "expired"])
def test_a_bad_token_is_refused(door: ListenerCertificate, pool: ThreadPoolExecutor, kind: str) -> None:
    listener = Listener(door, pool, now=LIFETIME if kind == "expired" else 1.0)
    token = listener.tokens.give(0.0, TICKET)
    if kind == "used":
        listener.tokens.redeem(1.0, token)
    with pytest.raises(TransportError):
        knock(listener.guest, door.fingerprint, b"x" * TOKEN_SIZE if kind == "unknown" else token)
    assert listener.refused() == "bad-token"


def test_who_shows_no_token_is_refused(door: ListenerCertificate, pool: ThreadPoolExecutor) -> None:
    listener = Listener(door, pool)
    client(listener.guest).close()
    assert listener.refused() == "failed"
    assert listener.shown == []


def test_older_tls_is_refused_on_both_sides(door: ListenerCertificate, pool: ThreadPoolExecutor) -> None:
    listener = Listener(door, pool)
    with pytest.raises(ssl.SSLError):
        client(listener.guest, ssl.TLSVersion.TLSv1_2)
    listener.refused()

    old = new_certificate()
    old.context.minimum_version = old.context.maximum_version = ssl.TLSVersion.TLSv1_2
    listener = Listener(old, pool)
    with pytest.raises(TransportError, match="failed"):
        knock(listener.guest, old.fingerprint, b"t" * TOKEN_SIZE)
    assert listener.refused() == "failed"
    assert listener.shown == []


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.0\r\n\r\n", b"\0" * 300, b"\x16\x03\x01\xff\xff" + b"x" * 70_000])
def test_what_is_not_tls_is_refused(door: ListenerCertificate, pool: ThreadPoolExecutor, garbage: bytes) -> None:
    listener = Listener(door, pool)
    listener.guest.sendall(garbage)
    with suppress(OSError):  # it may have hung up by now
        listener.guest.shutdown(socket.SHUT_WR)
    listener.refused()


def say_nothing(guest: socket.socket) -> None:
    """A connection, and that is all."""


def begin_only(guest: socket.socket) -> None:
    """Half of what TLS begins with."""
    guest.sendall(b"\x16\x03\x01\x02\x00\x01")


def show_nothing(guest: socket.socket) -> None:
    """TLS, and then silence."""
    guest = socket.socket(fileno=client(guest).detach())
    KEPT.append(guest)


KEPT: list[socket.socket] = []


@pytest.mark.parametrize("act", [say_nothing, begin_only, show_nothing])
def test_who_goes_silent_is_cut_off_in_time(
    door: ListenerCertificate,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[socket.socket], None],
) -> None:
    monkeypatch.setattr(handshake, "LIMIT", SHORT)
    listener = Listener(door, pool)
    act(listener.guest)
    listener.refused()
    while KEPT:
        KEPT.pop().close()


def test_who_drips_a_token_is_cut_off_in_time(
    door: ListenerCertificate, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte now and then would else keep one of the door's few threads busy for minutes."""
    monkeypatch.setattr(handshake, "LIMIT", SHORT)
    listener = Listener(door, pool)
    secured, drops = client(listener.guest), TOKEN_SIZE + SHARE - 1
    with suppress(OSError):
        while drops and not listener.admitted.done():
            secured.sendall(b"t")
            drops -= 1
            time.sleep(SHORT / 3)
    assert drops, "long before the last"
    with pytest.raises(TransportError):
        listener.admitted.result(10)
    secured.close()


def test_a_dialler_gives_up_a_silent_door_in_time(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "LIMIT", SHORT)
    guest, silent = tcp_pair()
    with closing(silent), pytest.raises(TransportError):
        pool.submit(knock, guest, Digest(b"f" * 32), b"t" * TOKEN_SIZE).result(10)
