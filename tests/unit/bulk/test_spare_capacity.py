"""Whether a path has room for more than one connection: what follows from what the system says, and that it says it."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path as File

import pytest

from shoal.protocol.net.bulk import spare_capacity
from shoal.protocol.net.bulk.spare_capacity import (
    APART,
    BUSY,
    FAR,
    LOOKS,
    LOST_WITHIN,
    MOSTLY,
    QUEUE,
    WINDOW,
    PathRtt,
    SpareCapacity,
    TcpInfo,
    tcp_info,
)
from tests.unit.bulk.kit import LIMIT, tcp_pair

STEP = 0.1  # seconds between two looks
LOSSY = TcpInfo(0.0, 0.0, 0.0, 0.0, rtt=0.101, least_rtt=0.1, lost=0, arrived=0, is_held_back=True)
HEADER = File("/usr/include/linux/tcp.h")


def looks(
    *kinds: TcpInfo,
    since: float = 0.0,
    seconds: float = 2 * WINDOW + 2 * STEP,
    step: float = STEP,
    busy: float = 1.0,
    receiver: float = 0.0,
    buffer: float = 0.0,
    losses: float = 10.0,
) -> Iterator[TcpInfo]:
    """These in turn, each `step` seconds, with something to send `busy` of the time, so many losses a second."""
    for number in range(round(seconds / step)):
        at = since + number * step
        yield replace(
            kinds[number % len(kinds)],
            at=at,
            busy=busy * at,
            receiver_limited=receiver * at,
            buffer_limited=buffer * at,
            lost=int(losses * at),
        )


def judged(seen: Iterator[TcpInfo], path: PathRtt | None = None) -> bool:
    capacity = SpareCapacity(path or PathRtt())
    for each in seen:
        capacity.see(each)
    return capacity.has_room


def test_losses_without_a_queue_leave_room() -> None:
    assert judged(looks(LOSSY))


@pytest.mark.parametrize(
    "seen",
    [
        replace(LOSSY, rtt=LOSSY.least_rtt + QUEUE[1]),  # a queue: the line is full
        replace(LOSSY, least_rtt=0.02, rtt=0.02 * (1 + QUEUE[0])),  # the same
        replace(LOSSY, is_paced=True),  # it would go faster, but for us
        replace(LOSSY, is_held_back=False),  # it grows quickly, or knows no losses, or had no more to send
        replace(LOSSY, least_rtt=FAR / 2, rtt=FAR / 2),  # near
    ],
)
def test_there_is_no_room_otherwise(seen: TcpInfo) -> None:
    assert not judged(looks(seen))


def test_who_left_slow_start_without_a_loss_only_has_to_grow() -> None:
    assert not judged(looks(LOSSY, losses=0.0))
    old = LOST_WITHIN + 2 * WINDOW
    once = [replace(each, lost=1 if each.at > 1 else 0) for each in looks(LOSSY, losses=0.0, seconds=old + 1)]
    assert judged(iter(once[: round(3 * WINDOW / STEP)]))
    assert not judged(iter(once)), "it was long ago"


def test_who_waits_for_the_receiver_is_not_held_back_by_the_path() -> None:
    assert judged(looks(LOSSY, receiver=1 - MOSTLY - 0.1))
    assert not judged(looks(LOSSY, receiver=1 - MOSTLY + 0.1))


def test_a_queue_that_stands_now_and_then_is_none() -> None:
    queued = replace(LOSSY, rtt=0.2)
    assert not judged(looks(LOSSY, queued))
    assert judged(looks(*[LOSSY] * 9, queued))


def test_the_least_round_trip_is_that_of_the_path_whoever_saw_it() -> None:
    """A connection that began in a queue takes it for the path, and the system forgets what was minutes ago."""
    path = PathRtt()
    queued = replace(LOSSY, rtt=0.201, least_rtt=0.2)
    assert judged(looks(queued), path)
    assert judged(looks(LOSSY), path)
    assert not judged(looks(queued), path)


def test_who_has_little_to_send_finds_nothing_out() -> None:
    assert not judged(looks(LOSSY, busy=BUSY - 0.1))
    assert judged(looks(LOSSY, busy=BUSY + 0.1))


def test_looks_that_follow_each_other_at_once_count_as_one() -> None:
    """The system counts in steps: between two looks there may be none."""
    often = list(looks(LOSSY, step=APART / 8))
    stepped = [replace(each, busy=each.at - each.at % 0.01) for each in often]
    assert judged(iter(stepped))


def test_few_looks_at_slow_writes_are_not_a_window() -> None:
    seldom = list(looks(LOSSY, step=1.5 * WINDOW, seconds=1.5 * WINDOW * (LOOKS + 1)))
    assert not judged(iter(seldom[:LOOKS]))
    assert judged(iter(seldom))


def test_what_was_found_out_stays_until_it_is_found_out_anew() -> None:
    capacity = SpareCapacity(PathRtt())
    for each in looks(LOSSY):
        capacity.see(each)
    capacity.see(replace(LOSSY, at=1000.0, busy=2 * WINDOW))  # nothing was sent for long
    assert capacity.has_room
    for each in looks(replace(LOSSY, rtt=0.2), since=1000.0):
        capacity.see(each)
    assert not capacity.has_room


def test_another_connection_has_all_judged_anew() -> None:
    capacity, seen = SpareCapacity(PathRtt()), list(looks(LOSSY, seconds=10 * WINDOW))
    for each in seen[: len(seen) // 2]:
        capacity.see(each)
    assert capacity.has_room
    capacity.judge_anew()
    assert not capacity.has_room
    for each in seen[len(seen) // 2 :]:
        capacity.see(each)
    assert capacity.has_room


def test_a_send_buffer_that_is_too_small_leaves_room_but_not_nearby_nor_behind_a_queue() -> None:
    full = replace(LOSSY, is_held_back=False)
    assert judged(looks(full, buffer=MOSTLY + 0.1))
    assert not judged(looks(full, buffer=MOSTLY - 0.1))
    assert not judged(looks(replace(full, rtt=0.2), buffer=1.0))
    assert not judged(looks(replace(full, is_paced=True), buffer=1.0))
    assert not judged(looks(replace(full, least_rtt=FAR / 2, rtt=FAR / 2), buffer=1.0))


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone says it")
def test_linux_says_it_all() -> None:
    mine, theirs = tcp_pair()
    with mine, theirs:
        first = tcp_info(mine)
        mine.setblocking(False)
        with pytest.raises(BlockingIOError):
            mine.sendall(bytes(64 << 20))
        due = time.monotonic() + LIMIT
        while (second := tcp_info(mine)) is not None and second.busy < 0.1 and time.monotonic() < due:
            pass  # what it could not send makes it busy
    assert first is not None
    assert second is not None
    assert (first.busy, first.receiver_limited, first.buffer_limited) == (0, 0, 0)
    assert (first.lost, first.is_held_back) == (0, False), "it had nothing to send"
    assert first.at < second.at
    assert 0.1 <= second.busy <= second.at - first.at + 0.02
    assert 0.05 < second.receiver_limited <= second.busy, "nobody reads there"
    assert 0 < second.least_rtt <= second.rtt < 5
    assert tcp_info(mine) is None, "a closed one is no reason to fail"


@pytest.mark.skipif(not HEADER.exists(), reason="needs the system's headers")
def test_the_places_are_those_of_the_systems_header() -> None:
    found = re.search(r"struct tcp_info \{(.*?)\n\};", HEADER.read_text(), re.DOTALL)
    assert found is not None
    sizes = {"__u8": 1, "__u32": 4, "__u64": 8}
    places, at = dict[str, int](), 0
    for kind, name, bits in re.findall(r"(__u\d+)\s+(\w+)\s*(: \d+,)?", found[1]):
        at = -(-at // sizes[kind]) * sizes[kind]
        places[name] = at
        at += 0 if bits else sizes[kind]
    words = ("rtt", "snd_ssthresh", "snd_cwnd", "total_retrans")
    rates = ("pacing_rate", "max_pacing_rate", "bytes_acked")
    names = (*words, *rates, "notsent_bytes", "min_rtt", "busy_time", "rwnd_limited", "sndbuf_limited")
    long = {*rates, *names[-3:]}
    wanted = [places[f"tcpi_{name}"] for name in names]
    marks = bytearray(spare_capacity._INFO.size)
    for number, (place, name) in enumerate(zip(wanted, names, strict=True), 1):
        size = 8 if name in long else 4
        marks[place : place + size] = number.to_bytes(size, sys.byteorder)
    assert spare_capacity._INFO.unpack(bytes(marks)) == tuple(range(1, len(wanted) + 1))
    assert all(before < after for before, after in pairwise(wanted))
