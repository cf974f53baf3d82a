"""Measuring a path without a network: what is found of links of all kinds, and that it is in nobody's way."""

from __future__ import annotations

import heapq

import pytest

from shoal.protocol.weighing import LONGEST, MOST, Weighing

LINKS = [(1e9, 0.001), (1e8, 0.02), (2e7, 0.05), (1e6, 0.1), (3e5, 0.03), (5e7, 0.3), (2e6, 0.5)]


class Link:
    """Of some bits a second and a round trip, with a queue that never drops."""

    def __init__(self, bits: float, trip: float) -> None:
        self.bytes, self.trip, self.free_at, self.longest_queue = bits / 8, trip, 0.0, 0.0

    def carry(self, now: float, size: int) -> float:
        """When it has arrived, and we know."""
        self.longest_queue = max(self.longest_queue, self.free_at - now)
        self.free_at = max(now, self.free_at) + size / self.bytes
        return self.free_at + self.trip


def weigh(link: Link) -> tuple[Weighing, float]:
    """What comes of it, and how long it took."""
    weighing, now, flying = Weighing(0.0), 0.0, list[tuple[float, int, float]]()
    while True:
        while size := weighing.next(now):
            heapq.heappush(flying, (link.carry(now, size), size, now))
        if not flying:
            return weighing, now
        now, size, begun = heapq.heappop(flying)
        weighing.arrived(now, size, now - begun)


@pytest.mark.parametrize(("bits", "trip"), LINKS)
def test_what_is_found_is_what_the_link_has(bits: float, trip: float) -> None:
    link = Link(bits, trip)
    weighing, took = weigh(link)
    print(f"{bits / 1e6:g} Mbit/s, {1000 * trip:g} ms: {8 * (weighing.rate or 0) / 1e6:.3g} Mbit/s in {took:.2f} s")
    assert weighing.rate is not None
    least = 0.15 if trip >= 0.3 and bits > 1e7 else 0.6  # where 2 s are seven trips, the pace is not found
    assert least * bits / 8 < weighing.rate < 1.1 * bits / 8
    assert weighing.carried <= MOST
    assert took < LONGEST + 2.0 + trip
    assert link.longest_queue < 1.2, "words wait no longer than that, and on slow links only"


def test_a_link_that_brings_nothing_has_no_rate() -> None:
    weighing = Weighing(0.0)
    assert weighing.next(0.0)
    assert weighing.next(LONGEST) == 0
    weighing.arrived(1.0, 1 << 14, 1.0)
    assert weighing.rate is None
    assert weighing.next(LONGEST) == 0


def test_no_more_than_was_asked_for_is_sent() -> None:
    weighing, sent = Weighing(0.0, 40_000), 0
    while size := weighing.next(0.0):
        weighing.arrived(0.0, size, 0.001)
        sent += size
    assert sent == 40_000
    assert weighing.rate is None, "all of it came at once"
