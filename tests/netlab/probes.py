"""Plain sockets in a lab: the address that others see, who gets through, how fast, how late."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable

from tests.netlab.gates import Count, Gate
from tests.netlab.segments import Host

Address = tuple[str, int]
IP_RECVTTL = 12  # of Linux; Python does not name it
PATIENCE = 10.0  # seconds for what must come
SOON = 0.4  # seconds for what must not: longer than any way through a lab


def udp(host: Host, port: int = 0) -> socket.socket:
    """A UDP socket on a machine; it also learns with how many hops left a packet came."""

    def there() -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.IPPROTO_IP, IP_RECVTTL, 1)
        sock.bind(("", port))
        sock.settimeout(PATIENCE)
        return sock

    return host.on(there)


def hops_left(sock: socket.socket) -> tuple[Address, int]:
    """Where the next packet comes from, and its time to live."""
    _, extra, _, sender = sock.recvmsg(2_000, 64)
    (ttl,) = struct.unpack("i", next(data for level, kind, data in extra if kind == socket.IP_TTL))
    return sender, ttl


def tcp(host: Host, port: int = 0) -> socket.socket:
    """A TCP socket on a machine, whose port others there may use, too."""

    def there() -> socket.socket:
        sock = socket.socket()
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            sock.setsockopt(socket.SOL_SOCKET, option, 1)
        sock.bind(("", port))
        sock.settimeout(PATIENCE)
        return sock

    return host.on(there)


def listener(host: Host, port: int) -> socket.socket:
    """A socket that accepts connections."""
    sock = tcp(host, port)
    sock.listen()
    return sock


def dial(host: Host, goal: Address, port: int = 0) -> socket.socket:
    """A connection from a machine's port."""
    sock = tcp(host, port)
    try:
        sock.connect(goal)
    except OSError:
        sock.close()
        raise
    return sock


def knock(host: Host, goal: Address, gate: Gate) -> str:
    """The outcome of a stranger's dial to a machine behind a gate: in, dropped or rejected."""
    refused = gate.count("refused")
    with tcp(host) as sock:
        sock.setblocking(False)
        sock.connect_ex(goal)
        if not does_come(gate, refused, lambda wait: bool(select.select((), [sock], (), wait)[1])):
            return "dropped"
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    assert error in (0, errno.ECONNREFUSED), os.strerror(error)
    return "rejected" if error else "in"


def does_come(gate: Gate, refused: Count, has_come: Callable[[float], bool]) -> bool:
    """Whether something comes: it has all the time it needs, unless the gate has refused more than it had before."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        has_refused = gate.count("refused") != refused
        if has_come(SOON if has_refused else 0.01):
            return True
        if has_refused:
            break
    return False


def round_trip(one: Host, other: Host) -> float:
    """Seconds for a packet there and one back: the median of some."""
    with udp(one) as here, udp(other) as there:
        times = []
        for _ in range(15):
            start = time.perf_counter()
            here.sendto(b"there", (other.address, there.getsockname()[1]))
            there.sendto(b"back", there.recvfrom(100)[1])
            here.recv(100)
            times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def throughput(sender: Host, receiver: Host, seconds: float, warm: float = 0.0) -> float:
    """Bits per second of one TCP connection's contents, after `warm` seconds in which it finds its pace."""
    with listener(receiver, 7_000) as door, dial(sender, (receiver.public, 7_000)) as out:
        pump = threading.Thread(target=_pump, args=(out,))
        incoming, _ = door.accept()
        pump.start()
        with incoming:
            _drain(incoming, warm)
            start = time.perf_counter()
            got = _drain(incoming, seconds)
            took = time.perf_counter() - start
        pump.join()
    return got * 8 / took


def _pump(out: socket.socket) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            out.sendall(bytes(1 << 16))


def _drain(incoming: socket.socket, seconds: float) -> int:
    buffer = bytearray(1 << 18)
    end, got = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        got += incoming.recv_into(buffer)
    return got
