"""Two machines behind routers dial each other at the same moment, with TCP alone: what hole punching rests on.

Each has one port for all: for what it learns its outside address by, for what it listens on and for what it dials
from. A router that keeps ports then gives it the same outside port again, and lets in an answer, or a SYN that looks
like one. That fails where each destination has a port of its own.
"""

from __future__ import annotations

import errno
import select
import socket
import time

import pytest

from tests.netlab.lab import Lab
from tests.netlab.links import Link
from tests.netlab.places import build
from tests.netlab.probes import Address, dial, listener, tcp
from tests.netlab.segments import Host

PORT = 4101
LIMIT = 2.5  # seconds; TCP repeats a SYN after one
FAR = Link(delay=0.01)

PAIRS = {
    "home-drop+home-drop": True,
    "home-drop+home-double": True,
    "home-reject+home-reject": True,  # as both SYNs are on their way before either arrives
    "blocked+home-drop": True,
    "home-drop+home-symmetric": False,
    "home-symmetric+home-symmetric": False,
}


@pytest.mark.parametrize("pair", PAIRS)
def test_two_that_dial_each_other(lab: Lab, pair: str) -> None:
    server, a, b = build(lab, pair, FAR).values()
    with listener(server, 5_000) as door:
        seen = [outside_address(host, server, door) for host in (a, b)]
    took = simultaneous_open(a, seen[0], b, seen[1])
    print(f"\n{pair:<32}{'no way through' if took is None else f'{took * 1e3:.0f} ms'}")
    assert (took is not None) == PAIRS[pair]
    met = a.edge.received_from(b.public).packets > 0 and b.edge.received_from(a.public).packets > 0
    assert met == PAIRS[pair], "the routers saw otherwise"


def outside_address(host: Host, server: Host, door: socket.socket) -> Address:
    """Where the server sees a machine's port."""
    with dial(host, (server.address, 5_000), PORT):
        line, address = door.accept()
        line.close()
    return address


def simultaneous_open(one: Host, ones: Address, other: Host, others: Address) -> float | None:
    """Seconds until both hold one connection; None if that never is."""
    start = time.monotonic()
    while time.monotonic() < start + LIMIT:
        with tcp(one, PORT) as here, tcp(other, PORT) as there:
            for sock in (here, there):
                sock.setblocking(False)
            begun = here.connect_ex(others), there.connect_ex(ones)
            assert begun == (errno.EINPROGRESS, errno.EINPROGRESS)
            if is_open(here, start + LIMIT) and is_open(there, start + LIMIT):
                here.send(b"one connection, not two")
                there.setblocking(True)
                assert there.recv(100) == b"one connection, not two"
                return time.monotonic() - start
    return None


def is_open(sock: socket.socket, deadline: float) -> bool:
    select.select((), [sock], (), max(0.0, deadline - time.monotonic()))
    try:
        sock.getpeername()
    except OSError:
        return False
    return True
