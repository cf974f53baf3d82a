"""The rate of our line, found out: a line in virtual time, by which some peers are sent to, and others perhaps send."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from shoal.protocol.net.bulk.pacing import CALM, ENOUGH, FIRST, HELD, MORE, RISE, STALLED, Delivered, LineRate

MBIT = 125_000.0
STEP, TICK = 0.05, 0.25  # seconds
BUFFER, NOTICED = 0.2, 0.015  # seconds of the line: what waits at most, and what counts as a queue
EAGER = 1.5  # a second: how TCP becomes faster
LINE = 50 * MBIT


@dataclass
class Home:
    """Its line, and TCP connections over it, which take what they get; those in `receivers` have slower lines there."""

    line: float = LINE
    peers: int = 3
    receivers: dict[int, float] = field(default_factory=dict)
    other: float = 0.0  # bytes a second of somebody else's, by a TCP that fills the queue
    has_false_queues: bool = False  # round trips vary, whatever is sent
    has_slow_queues: bool = True  # before slow receivers
    found: LineRate = field(default_factory=LineRate)
    now: float = 0.0
    waiting: float = 0.0  # bytes, before the line

    def __post_init__(self) -> None:
        self.pace = [self.line / 20] * self.peers  # of TCP itself
        self.passed = [0.0] * self.peers
        self.total = [0.0] * self.peers

    def send(self, seconds: float) -> float:
        """Always; bytes a second that passed in this time."""
        before = sum(self.total)
        for number in range(round(seconds / STEP)):
            self._step()
            if number % round(TICK / STEP) == round(TICK / STEP) - 1:
                self._tick()
        return (sum(self.total) - before) / seconds

    def until(self, condition: Callable[[LineRate], bool], limit: float = 120.0) -> float:
        """Seconds of sending."""
        begin = self.now
        while not condition(self.found):
            self.send(TICK)
            assert self.now - begin < limit, f"{self.found.rate / MBIT:.1f} Mbit/s after {limit} s"
        return self.now - begin

    def _step(self) -> None:
        self.now += STEP
        part = self.found.rate / self.peers if self.found.rate else float("inf")
        wished = [min(part, pace, self._receiver(peer)) for peer, pace in enumerate(self.pace)]
        offered = sum(wished) + self.other
        served = min(self.line, offered + self.waiting / STEP)
        self.waiting = min(BUFFER * self.line, max(0.0, self.waiting + (offered - served) * STEP))
        is_full, share = self.waiting >= 0.99 * BUFFER * self.line, served / offered
        if self.other:
            self.other *= 0.8 if is_full else 1 + EAGER * STEP
        for peer, wish in enumerate(wished):
            self.passed[peer] += share * wish * STEP
            self.total[peer] += share * wish * STEP
            grown = self.pace[peer] * (1 + EAGER * STEP)
            self.pace[peer] = share * wish if is_full else min(grown, 1.25 * wish)

    def _tick(self) -> None:
        has_queue = self.has_false_queues or self.waiting > NOTICED * self.line
        seen = [
            Delivered(round(size), has_queue or (self.has_slow_queues and self.pace[peer] > self._receiver(peer)))
            for peer, size in enumerate(self.passed)
        ]
        self.passed = [0.0] * self.peers
        self.found.see(TICK, seen, self.peers)

    def _receiver(self, peer: int) -> float:
        return self.receivers.get(peer, float("inf"))


def settled(peers: int = 3, line: float = LINE) -> Home:
    home = Home(line, peers)
    home.send(15.0)
    return home


def near(rate: float, share: float = 0.1) -> Callable[[LineRate], bool]:
    return lambda found: abs(found.rate - rate) < share * rate


@pytest.mark.parametrize("line", [2.0, 50.0, 1000.0])
@pytest.mark.parametrize("peers", [2, 3, 15])
def test_what_a_line_carries_is_found_and_stays_found(line: float, peers: int) -> None:
    home = Home(line * MBIT, peers)
    assert home.until(near(home.line)) < 5
    for _ in range(240):
        home.send(TICK)
        assert near(home.line, 0.2)(home.found)
    assert home.send(60.0) > 0.97 * home.line
    assert max(home.total) < 1.01 * min(home.total), "which was the point"


def test_a_line_that_is_never_full_has_no_rate() -> None:
    """As on very fast ones, where processors or receivers are what ends first."""
    home = Home(1000 * MBIT, receivers=dict.fromkeys(range(3), 50 * MBIT))
    home.has_slow_queues = False
    home.send(60.0)
    assert home.send(1.0) == pytest.approx(150 * MBIT)
    assert not home.found.rate


def test_a_moment_is_not_enough() -> None:
    found, full, free = LineRate(), Delivered(1_000_000, has_queue=True), Delivered(1_000_000, has_queue=False)
    for each in (full, free, full):
        found.see(ENOUGH / 2, [each], 1)
        assert not found.rate
    found.see(ENOUGH / 2, [full], 1)
    assert found.rate == pytest.approx(FIRST * 2_000_000 / ENOUGH)


@pytest.mark.parametrize("times", [3.0, 10.0])
def test_who_was_wrong_by_far_is_right_again_soon(times: float) -> None:
    home = settled()
    home.found.rate /= times
    assert home.until(near(LINE)) < 10
    home.found.rate *= times
    assert home.until(near(LINE)) < 10


def test_a_line_that_gets_slower_or_faster_is_followed() -> None:
    home = settled()
    home.line = LINE / 2
    assert home.until(near(home.line)) < 8
    home.line = 2 * LINE
    assert home.until(near(home.line)) < 10
    assert home.send(30.0) > 0.95 * home.line


@pytest.mark.parametrize("slow", [1, 2])
def test_slow_receivers_do_not_hold_the_others_back(slow: int) -> None:
    """The rate is more than the line then, as they leave most of their parts to the others."""
    home = settled()
    home.receivers = dict.fromkeys(range(slow), 5 * MBIT)
    home.send(10.0)
    assert home.send(30.0) > 0.8 * LINE
    home.receivers = {}
    assert home.until(near(LINE, 0.15)) < 10


def test_who_gets_less_than_its_part_or_is_one_of_few_has_no_say() -> None:
    """Nobody knows what more would do, or the parts of others are about to be free."""
    found, part = LineRate(), TICK * 250_000
    found.rate = 1_000_000.0
    for _ in range(100):
        found.see(TICK, [Delivered(round(0.99 * HELD * part), has_queue=False)] * 4, 4)
        found.see(TICK, [Delivered(round(part), has_queue=False)] * 2, 4)
    assert found.rate == 1_000_000
    found.see(TICK, [Delivered(round(part), has_queue=False)] * 3, 4)
    assert found.rate == pytest.approx(1_000_000 * (1 + RISE) ** TICK)


def test_a_machine_that_is_too_busy_to_look_learns_nothing() -> None:
    home = settled()
    before = home.found.rate
    for has_queue in (True, False):
        home.found.see(1.01 * STALLED, [Delivered(100_000, has_queue)] * 3, 3)
    assert home.found.rate == before
    home.send(1.0)
    assert near(LINE)(home.found)


def test_other_traffic_of_the_same_home_does_not_bring_us_to_nothing() -> None:
    """It fills the queue whatever we do; we would yield to it for ever."""
    home = settled()
    home.other = MBIT
    for _ in range(20):
        assert home.send(10.0) > 0.6 * LINE
    home.other = 0.0
    assert home.until(near(LINE)) < 20


def test_round_trips_that_vary_whatever_is_sent_are_no_queue_for_ever() -> None:
    home = settled()
    home.has_false_queues = True
    for _ in range(20):
        assert home.send(8.0) > 0.85 * LINE
    home.found.rate = LINE / 3
    assert home.until(near(LINE)) < 15


def test_times_between_looks_do_not_matter() -> None:
    rates = list[float]()
    for tick in (0.1, 0.25, 0.5):
        found = LineRate()
        found.rate = 1_000_000.0
        for _ in range(round(2 * CALM / tick)):
            found.see(tick, [Delivered(round(tick * found.rate), has_queue=False)], 1)
        rates.append(found.rate)
    assert max(rates) < 1.2 * min(rates)


def test_a_line_that_stalls_for_a_moment_is_not_slower() -> None:
    """As by a radio, or a busy machine."""
    home = settled()
    home.until(near(LINE, 0.05))
    for _ in range(5):
        home.line = LINE / 3
        home.send(1.0)
        home.line = LINE
        home.send(4.0)
        assert near(LINE, 0.12)(home.found)


def test_the_queue_gets_shorter() -> None:
    home, short = settled(), 0
    for _ in range(400):
        home.send(TICK)
        short += home.waiting < NOTICED * LINE
    assert short > 100


def test_who_sees_much_more_pass_than_it_thought_believes_it_at_once() -> None:
    """Such as after a queue that was not ours, in a line that became faster meanwhile."""
    found = LineRate()
    found.rate = 1_000_000.0
    for _ in range(2):
        found.see(ENOUGH / 2, [Delivered(round(1_000_000 * ENOUGH), has_queue=True)], 1)
    assert found.rate == pytest.approx(2_000_000 / MORE)
