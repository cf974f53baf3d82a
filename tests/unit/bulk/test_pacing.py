"""Even parts of a line: who counts, what each socket is told, and what is seen of it. Sockets are real."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path as File

import pytest

from shoal.protocol.base.ids import PeerId
from shoal.protocol.net.bulk import pacing
from shoal.protocol.net.bulk.pacing import (
    CLOSE,
    LINGER,
    SO_MAX_PACING_RATE,
    UNLIMITED,
    Delivered,
    LineRate,
    PacedSocket,
    Pacing,
    SocketPacer,
)
from shoal.protocol.net.bulk.spare_capacity import PathRtt, TcpInfo, tcp_info
from tests.unit.bulk.kit import in_thread, tcp_pair
from tests.unit.bulk.test_receiver import eventually

HEADER = File("/usr/include/asm-generic/socket.h")
RATE = 6_000_000.0
A, B, C = (PeerId(name) for name in "abc")
NO_LIMIT = (1 << 64) - 1  # as TCP_INFO has it

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone paces")


class Home:
    """A line of RATE, and sockets over the loopback to peers beyond it."""

    def __init__(self, rate: float = RATE) -> None:
        self.now = 100.0
        self.found = LineRate()
        self.found.rate = rate
        self.pacing = Pacing(self.found, lambda: self.now)
        self.ends: list[socket.socket] = []

    def open(self, peer: PeerId) -> tuple[SocketPacer, socket.socket]:
        mine, theirs = tcp_pair()
        self.ends += [mine, theirs]
        return self.pacing.pacer(peer, mine, PathRtt()), mine


@contextmanager
def home(rate: float = RATE) -> Iterator[Home]:
    made = Home(rate)
    try:
        yield made
    finally:
        for each in made.ends:
            each.close()


def limit(connection: socket.socket) -> int:
    """What the system holds it to; 0 for nothing."""
    (most,) = struct.unpack("=112x Q", connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 120))
    return 0 if most == NO_LIMIT else int(most)


@pytest.mark.asyncio
async def test_each_peer_gets_its_part_and_its_sockets_share_it() -> None:
    with home() as at:
        (first, a), (second, b), (third, c), (other, c2) = map(at.open, (A, B, C, C))
        first.take()
        assert limit(a) == 0, "one alone gets all"
        second.take()
        assert (limit(a), limit(b)) == (0, RATE / 2), "who was there hears of it with the next look"
        third.take()
        other.take()
        assert at.pacing.look()
        assert [limit(each) for each in (a, b, c, c2)] == [RATE / 3, RATE / 3, RATE / 6, RATE / 6]


@pytest.mark.asyncio
async def test_who_rests_keeps_its_part_for_a_while() -> None:
    with home() as at:
        (first, a), (second, _) = map(at.open, (A, B))
        first.take()
        second.take()
        second.rest()
        at.now += LINGER / 2
        at.pacing.look()
        assert limit(a) == RATE / 2
        second.take()
        at.now += LINGER
        at.pacing.look()
        assert limit(a) == RATE / 2, "it sends again"
        second.rest()
        at.now += LINGER
        assert at.pacing.look()
        assert limit(a) == 0
        first.rest()
        first.rest()
        at.now += LINGER
        assert not at.pacing.look(), "nobody sends any more"


@pytest.mark.asyncio
async def test_nobody_is_held_to_what_is_not_known() -> None:
    with home(rate=0.0) as at:
        (first, a), (second, b) = map(at.open, (A, B))
        first.take()
        second.take()
        at.pacing.look()
        assert (limit(a), limit(b)) == (0, 0)


@pytest.mark.asyncio
async def test_small_changes_are_not_worth_a_call_and_large_rates_none_at_all() -> None:
    with home() as at:
        (first, a), (second, _) = map(at.open, (A, B))
        first.take()
        second.take()
        at.pacing.look()
        at.found.rate *= 1 + CLOSE / 2
        at.pacing.look()
        assert limit(a) == RATE / 2
        at.found.rate = RATE * (1 + 2 * CLOSE)
        at.pacing.look()
        assert limit(a) == round(at.found.rate / 2)
        at.found.rate = 4.0 * UNLIMITED
        at.pacing.look()
        assert limit(a) == 0


@pytest.mark.asyncio
async def test_what_arrives_is_seen_as_long_as_anything_is_sent() -> None:
    """By looks that the loop makes by itself, and from the moment on in which it began."""
    with home(rate=0.0) as at:
        turn, mine = at.open(A)
        assert isinstance(turn, PacedSocket)
        mine.sendall(bytes(1000))
        await eventually(lambda: (seen := tcp_info(mine)) is not None and seen.arrived >= 1000)
        seen = list[tuple[float, list[int]]]()
        at.found.see = lambda seconds, passed, parts: seen.append((seconds, [each.size for each in passed]))  # type: ignore[method-assign]
        thread = in_thread(turn.take)
        thread.join()
        at.now += 0.25
        mine.sendall(bytes(500))
        await eventually(lambda: seen)
        assert seen[0] == (0.25, [500])
        turn.rest()
        at.now += LINGER
        await asyncio.sleep(0)
        assert not at.pacing.look()


@pytest.mark.asyncio
@pytest.mark.parametrize(("busy", "is_busy"), [(0.1, False), (0.24, True)])
async def test_a_path_with_little_to_send_shows_no_queue_and_one_with_unsent_bytes_is_seen(
    monkeypatch: pytest.MonkeyPatch, busy: float, is_busy: bool
) -> None:
    """Small payloads are in the system's buffer at once: the thread rests, and our pace sends them for a while yet."""
    with home() as at:
        looks = dict.fromkeys((A, B), 0)
        peers = dict[socket.socket, PeerId]()
        slow = TcpInfo(0.0, 0.0, 0.0, 0.0, rtt=0.5, least_rtt=0.01, lost=0, arrived=0, is_held_back=False)

        def info(connection: socket.socket) -> TcpInfo:
            count = looks[peers[connection]] = looks[peers[connection]] + 1
            return replace(slow, at=0.25 * count, busy=busy * count, arrived=1000 * count)

        monkeypatch.setattr(pacing, "tcp_info", info)
        seen = list[list[Delivered]]()
        at.found.see = lambda seconds, passed, parts: seen.append(list(passed))  # type: ignore[method-assign]
        for peer in (A, B):
            turn, mine = at.open(peer)
            peers[mine] = peer
            turn.take()
            turn.rest()
        at.now += 0.25
        at.pacing.look()
        assert seen == ([[Delivered(1000, has_queue=True)] * 2] if is_busy else [])


@pytest.mark.asyncio
async def test_a_socket_that_is_closed_meanwhile_is_no_trouble() -> None:
    with home() as at:
        (first, a), (second, b) = map(at.open, (A, B))
        first.take()
        second.take()
        a.close()
        at.pacing.look()
        first.rest()
        assert limit(b) == RATE / 2


@pytest.mark.asyncio
async def test_the_system_says_that_a_socket_is_held_back_by_us() -> None:
    """So that this is not taken for losses."""
    mine, theirs = tcp_pair()
    with mine, theirs:
        mine.sendall(bytes(100_000))
        await eventually(lambda: (seen := tcp_info(mine)) is not None and seen.arrived >= 100_000)
        fast = tcp_info(mine)
        mine.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=I", 100_000))
        mine.sendall(bytes(100_000))
        slow = tcp_info(mine)
        mine.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=I", UNLIMITED))
        mine.sendall(bytes(100_000))
        assert fast is not None
        assert slow is not None
        assert (fast.is_paced, slow.is_paced) == (False, True)


@pytest.mark.skipif(not HEADER.exists(), reason="needs the system's headers")
def test_the_option_is_that_of_the_systems_header() -> None:
    found = re.search(r"#define\s+SO_MAX_PACING_RATE\s+(\d+)", HEADER.read_text())
    assert found is not None
    assert int(found[1]) == SO_MAX_PACING_RATE
