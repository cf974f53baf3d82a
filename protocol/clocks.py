"""By how much two clocks differ: the answer to a ping says what the other's shows. Pure.

An earlier version sends no clock, and reads none; who sends nonsense is taken for one.
"""

from __future__ import annotations

SIZE = 8  # bytes: milliseconds since 1970
LATEST = 1 << 46  # in the year 4199


def shown(clock: float) -> bytes:
    """What a clock shows, in seconds since 1970, for a pong."""
    return max(0, int(1000 * clock)).to_bytes(SIZE, "big")


def ahead(clock: float, rtt: float, body: bytes | memoryview) -> float | None:
    """By how many seconds ours is ahead of theirs, if that is what a pong says which has just come, after `rtt`."""
    theirs = int.from_bytes(body, "big") if len(body) == SIZE else LATEST
    return clock - rtt / 2 - theirs / 1000 if theirs < LATEST else None
