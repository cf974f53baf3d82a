"""A link's delay, rate and loss are what they are said to be.

The figures are printed; what is asserted is loose, as the switch shares its cores with whatever else runs.
"""

from __future__ import annotations

import socket

import pytest

from tests.integration.nodes import until
from tests.netlab.internet import Traffic
from tests.netlab.lab import Lab
from tests.netlab.links import Link
from tests.netlab.places import build
from tests.netlab.probes import round_trip, throughput, udp

SO_RCVBUFFORCE = 33  # of Linux; Python does not name it
MBIT = 1e6
CONTENTS = 1_448 / 1_500  # of a TCP packet
SENT = 1_000


def test_the_delay_is_one_way_and_per_link(lab: Lab) -> None:
    one, other = (lab.internet.host(label) for label in ("one", "other"))
    bare = round_trip(one, other)
    lab.internet.lay(one, Link(delay=0.025))
    once = round_trip(one, other)
    lab.internet.lay(other, Link(delay=0.025))
    twice = round_trip(one, other)
    print(
        f"\nround trips: {bare * 1e3:.2f} ms bare, {once * 1e3:.2f} with one link of 25 ms, {twice * 1e3:.2f} with two"
    )
    assert 0.050 <= once < 0.075
    assert 0.100 <= twice < 0.150


def test_the_rate_of_one_connection(lab: Lab) -> None:
    one, other = (lab.internet.host(label) for label in ("one", "other"))
    free = throughput(one, other, 1.5)
    print(f"\nno limit: {free / MBIT:.0f} Mbit/s")
    lab.internet.lay(one, Link(delay=0.025, rate=50 * MBIT, up=10 * MBIT))
    up, down = throughput(one, other, 1.5, warm=1.0), throughput(other, one, 2.0, warm=1.0)
    print(f"25 ms, 50 Mbit/s and 10 up: {down / MBIT:.1f} down, {up / MBIT:.1f} up")
    assert free > 100 * MBIT
    assert 0.8 < down / CONTENTS / (50 * MBIT) < 1.1
    assert 0.8 < up / CONTENTS / (10 * MBIT) < 1.1


def test_two_that_share_a_link_share_its_rate(lab: Lab) -> None:
    server, a = build(lab, "home-drop").values()
    lab.internet.lay(lab.internet.members[1], Link(rate=20 * MBIT))
    got = throughput(a, server, 1.0, warm=0.3)
    print(f"\nthrough a home router at 20 Mbit/s: {got / MBIT:.1f}")
    assert 0.8 < got / CONTENTS / (20 * MBIT) < 1.1


def test_what_is_lost_is_counted(lab: Lab) -> None:
    one, other = (lab.internet.host(label, link=Link(loss=0.1)) for label in ("one", "other"))
    with udp(one) as here, udp(other, 5_000) as there:
        there.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
        there.setblocking(False)
        for _ in range(SENT):
            here.sendto(b"x", (other.address, 5_000))

        def both() -> tuple[Traffic, Traffic]:
            return lab.internet.traffic(one)[0], lab.internet.traffic(other)[1]

        until(lambda: sum(each.lost for each in both()) + both()[1].carried == SENT, "all to be dealt with", str)
        up, down = both()
        got = sum(1 for _ in iter(lambda: waiting(there), False))
    print(f"\n{SENT} sent, {up.lost} lost on the first link, {down.lost} on the second, {got} arrived")
    assert down.carried == got
    assert up.lost == pytest.approx(SENT / 10, abs=SENT / 25)
    assert down.lost == pytest.approx(up.carried / 10, abs=SENT / 25)


def waiting(sock: socket.socket) -> bool:
    """Take the next packet, if there is one."""
    try:
        return bool(sock.recv(100))
    except BlockingIOError:
        return False


def test_a_cut_is_between_those_that_it_names(lab: Lab) -> None:
    one, other, third = (lab.internet.host(label) for label in ("one", "other", "third"))
    lab.internet.cut([one], [other])
    with udp(one, 5_000) as here, udp(other, 5_000) as there:
        here.sendto(b"lost", (other.address, 5_000))
        there.sendto(b"lost", (one.address, 5_000))
        assert round_trip(one, third) > 0
        assert round_trip(third, other) > 0
        lab.internet.mend()
        here.sendto(b"found", (other.address, 5_000))
        assert there.recv(100) == b"found"
        there.sendto(b"found", (one.address, 5_000))
        assert here.recv(100) == b"found"
