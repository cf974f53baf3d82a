"""Rates hold for all who share them, control messages wait for nobody, and without a rate nothing waits."""

from __future__ import annotations

import heapq
import threading

import pytest

from shoal.protocol.net.system.throttle import (
    ANSWERED,
    BURST,
    HEADERS,
    LEAST_BURST,
    LONGEST_PIECE,
    SEGMENT,
    SHORTEST_PIECE,
    RateLimit,
    StreamPace,
    Throttle,
)

MB = 1_000_000
RATE = 2 * MB
BARE = SEGMENT / (SEGMENT + HEADERS)  # of what is counted, a connection's own bytes


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def throttled(clock: Clock, up: float | None = RATE, down: float | None = None) -> Throttle:
    throttle = Throttle(clock, clock.sleep)
    throttle.up.cap(up)
    throttle.down.cap(down)
    return throttle


def warm(flow: RateLimit) -> RateLimit:
    """Without what may pass at once after a silence."""
    flow.spend(int(max(LEAST_BURST, BURST * (flow.rate or 0))))
    return flow


def passed_together(clock: Clock, flow: RateLimit, streams: int, seconds: float, size: int = 1 << 20) -> list[int]:
    """The bytes that each of some streams has passed, side by side, as `RawStream` does it, in some seconds."""
    paces, sent = [StreamPace(flow) for _ in range(streams)], [0] * streams
    ends, due = clock.now + seconds, [(clock.now, number) for number in range(streams)]
    while due[0][0] < ends:
        clock.now, number = heapq.heappop(due)
        piece = len(next(iter(paces[number].pieces(bytes(size)))))
        flow.count(piece)
        paces[number].passed(piece)
        sent[number] += piece
        heapq.heappush(due, (clock.now + paces[number].rest, number))
    return sent


@pytest.mark.parametrize("rate", [16_000, 250_000, 2 * MB, 50 * MB])
def test_a_thread_that_spends_keeps_to_the_rate(rate: float) -> None:
    clock = Clock()
    flow = warm(throttled(clock, rate).up)
    begin, before, sent = clock.now, flow.total, 0
    while clock.now < begin + 60:
        flow.spend(flow.piece)
        sent += flow.piece
    assert sent / BARE / (clock.now - begin) == pytest.approx(rate, rel=0.05)
    assert (flow.total - before) / (clock.now - begin) == pytest.approx(rate, rel=0.01)


@pytest.mark.parametrize("streams", [1, 3, 30])
@pytest.mark.parametrize("size", [500, 20_000, 1 << 20])
def test_streams_share_the_rate_and_each_gets_its_turn(streams: int, size: int) -> None:
    clock = Clock()
    flow = throttled(clock).up
    passed_together(clock, flow, streams, 5, size)
    before = flow.total
    sent = passed_together(clock, flow, streams, 15, size)
    assert (flow.total - before) / 15 == pytest.approx(RATE, rel=0.05)
    assert min(sent) > 0.8 * max(sent)


def test_a_thread_and_a_stream_share_it_too() -> None:
    clock, begin = Clock(), 1000.0
    flow = throttled(clock).up
    pace, ready, spent, sent = StreamPace(flow), begin, 0, 0
    while clock.now < begin + 60:  # the thread sleeps in `spend`; the stream passes when it wakes in between
        if clock.now >= ready:
            flow.count(flow.piece)
            pace.passed(flow.piece)
            ready, sent = clock.now + pace.rest, sent + flow.piece
        flow.spend(flow.piece)
        spent += flow.piece
    assert flow.total / (clock.now - begin) == pytest.approx(RATE, rel=0.05)
    assert sent > 0.25 * spent, "neither starves"


def test_words_are_counted_and_never_wait() -> None:
    clock = Clock()
    flow = throttled(clock).up
    flow.spend(4 * MB)
    begin, pace = clock.now, StreamPace(flow)
    for _ in range(200):
        flow.count(100)
        pace.passed(100)
    assert pace.rest == 0
    assert clock.now == begin
    assert flow.debt == pytest.approx(200 * (100 + HEADERS) / RATE, rel=0.1), "payload pays for them"


def test_a_flood_of_words_is_no_way_around_the_rate() -> None:
    clock = Clock()
    flow = throttled(clock).up
    sent = passed_together(clock, flow, 8, 15, size=200)
    assert sum(sent) > 0
    assert flow.total / 15 < 1.05 * RATE


def test_after_a_silence_little_passes_at_once() -> None:
    clock = Clock()
    flow = throttled(clock, up=20_000).up
    clock.now += 3600
    flow.count(LEAST_BURST)
    assert flow.debt == pytest.approx(HEADERS * LEAST_BURST / SEGMENT / 20_000, rel=0.05)


def test_a_long_spend_leaves_room_for_others_in_between() -> None:
    clock, slept = Clock(), list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.sleep(seconds)

    throttle = Throttle(clock, sleep)
    throttle.up.cap(RATE)
    throttle.up.spend(8 * MB)
    assert max(slept) < 2 * LONGEST_PIECE / RATE
    assert sum(slept) == pytest.approx(8 * MB / BARE / RATE, rel=0.06)


def test_answers_are_counted_the_other_way() -> None:
    throttle = Throttle()
    throttle.down.count(100 * ANSWERED * SEGMENT)
    assert throttle.up.total == 100 * HEADERS
    assert throttle.total == throttle.down.total + throttle.up.total
    assert throttle.down.total == 100 * ANSWERED * (SEGMENT + HEADERS)


def test_without_a_rate_nobody_waits_and_all_is_counted() -> None:
    throttle = Throttle(sleep=lambda seconds: pytest.fail("it waits"))
    flow, pace, data = throttle.up, StreamPace(throttle.up), bytes(1 << 20)
    flow.spend(10 * MB)
    pace.passed(10 * MB)
    assert pace.is_free
    assert pace.rest == flow.debt == 0
    assert flow.rate is None
    assert [part is data for part in pace.pieces(data)] == [True], "and nothing is cut"
    assert flow.total == pytest.approx(10 * MB / BARE, rel=0.01)


def test_pieces_are_whole_and_short() -> None:
    throttle = Throttle()
    data = bytes(range(256)) * 1000
    for rate in (1000, 100_000, RATE, 100 * MB):
        throttle.up.cap(rate)
        pace = StreamPace(throttle.up)
        parts = [bytes(part) for part in pace.pieces(data)]
        assert b"".join(parts) == data
        assert all(len(part) <= pace.piece for part in parts)
        assert SHORTEST_PIECE <= pace.piece <= LONGEST_PIECE


def test_threads_do_not_lose_count() -> None:
    throttle = Throttle()

    def count() -> None:
        for _ in range(5000):
            throttle.down.count(SEGMENT)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert throttle.down.total == 4 * 5000 * (SEGMENT + HEADERS)
