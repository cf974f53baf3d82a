"""Measuring a path without a network: links of all kinds are measured right, and no traffic is disturbed."""

from __future__ import annotations

import heapq

import pytest

from shoal.protocol.net.measure.bandwidth_probe import LONGEST, MOST, BandwidthProbe

LINKS = [(1e9, 0.001), (1e8, 0.02), (2e7, 0.05), (1e6, 0.1), (3e5, 0.03), (5e7, 0.3), (2e6, 0.5)]


class Link:
    """A link with a rate and a round trip, whose queue never drops anything."""

    def __init__(self, bits: float, trip: float) -> None:
        self.bytes, self.trip, self.free_at, self.longest_queue = bits / 8, trip, 0.0, 0.0

    def carry(self, now: float, size: int) -> float:
        """When it has arrived, and we know."""
        self.longest_queue = max(self.longest_queue, self.free_at - now)
        self.free_at = max(now, self.free_at) + size / self.bytes
        return self.free_at + self.trip


def weigh(link: Link) -> tuple[BandwidthProbe, float]:
    """The result of a probe, and the seconds it took."""
    probe, now, flying = BandwidthProbe(0.0), 0.0, list[tuple[float, int, float]]()
    while True:
        while size := probe.next(now):
            heapq.heappush(flying, (link.carry(now, size), size, now))
        if not flying:
            return probe, now
        now, size, begun = heapq.heappop(flying)
        probe.arrived(now, size, now - begun)


@pytest.mark.parametrize(("bits", "trip"), LINKS)
def test_what_is_found_is_what_the_link_has(bits: float, trip: float) -> None:
    link = Link(bits, trip)
    probe, took = weigh(link)
    print(f"{bits / 1e6:g} Mbit/s, {1000 * trip:g} ms: {8 * (probe.rate or 0) / 1e6:.3g} Mbit/s in {took:.2f} s")
    assert probe.rate is not None
    least = 0.15 if trip >= 0.3 and bits > 1e7 else 0.6  # where 2 s are seven trips, the pace is not found
    assert least * bits / 8 < probe.rate < 1.1 * bits / 8
    assert probe.carried <= MOST
    assert took < LONGEST + 2.0 + trip
    assert link.longest_queue < 1.2, "words wait no longer than that, and on slow links only"


def test_a_link_that_brings_nothing_has_no_rate() -> None:
    probe = BandwidthProbe(0.0)
    assert probe.next(0.0)
    assert probe.next(LONGEST) == 0
    probe.arrived(1.0, 1 << 14, 1.0)
    assert probe.rate is None
    assert probe.next(LONGEST) == 0


def test_no_more_than_was_asked_for_is_sent() -> None:
    probe, sent = BandwidthProbe(0.0, 40_000), 0
    while size := probe.next(0.0):
        probe.arrived(0.0, size, 0.001)
        sent += size
    assert sent == 40_000
    assert probe.rate is None, "all of it came at once"
