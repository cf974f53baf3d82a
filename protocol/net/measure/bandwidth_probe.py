"""Measures the rate of a path by a probe: how much to send now, and which rate follows from what has arrived. Pure.

Rules:
- It is short: MOST bytes or LONGEST seconds, whichever comes first.
- It disturbs nobody: the window (bytes on their way) grows as long as parts arrive soon, and shrinks as soon as they
  take QUEUE longer than the fastest did. So messages and pings wait for no more than that.
- The first half of the time is not counted, as TCP and the window are still growing then. If the round trip is so long
  that they do not grow enough, the result is lower than the rate of the path.
"""

from __future__ import annotations

MOST, LONGEST = 4 << 20, 2.0  # bytes, seconds
SMALLEST, LARGEST = 16 << 10, 128 << 10  # bytes of a part
FIRST_WINDOW, MOST_WINDOW = 2 * SMALLEST, 2 << 20
QUEUE = 0.15  # seconds that a part may take beyond the fastest
LEAST_PARTS = 4  # that must have arrived for a rate


class BandwidthProbe:
    """A probe of one direction of one path."""

    def __init__(self, now: float, most: int = MOST) -> None:
        self._begin, self._most = now, most
        self._begun = self._flying = 0  # bytes
        self._window = FIRST_WINDOW
        self._fastest = float("inf")
        self._arrivals: list[tuple[float, int]] = []

    def next(self, now: float) -> int:
        """The size of a part to send now, in bytes; 0: none."""
        size = min(LARGEST, max(SMALLEST, self._window // 4), self._most - self._begun)
        if size <= 0 or now >= self._begin + LONGEST or (self._flying and self._flying + size > self._window):
            return 0
        self._begun += size
        self._flying += size
        return size

    def arrived(self, now: float, size: int, took: float) -> None:
        """A part has arrived, `took` seconds after it was sent."""
        self._flying -= size
        self._arrivals.append((now, size))
        self._fastest = min(self._fastest, took)
        grown = self._window + (size if took <= self._fastest + QUEUE else -size)
        self._window = max(FIRST_WINDOW, min(MOST_WINDOW, grown))

    @property
    def rate(self) -> float | None:
        """Bytes a second; None if too little has arrived."""
        if len(self._arrivals) < LEAST_PARTS:
            return None
        middle = (self._begin + self._arrivals[-1][0]) / 2
        late = next(number for number, (at, _) in enumerate(self._arrivals) if at >= middle)
        first = min(late, len(self._arrivals) - 2)
        seconds = self._arrivals[-1][0] - self._arrivals[first][0]
        return sum(size for _, size in self._arrivals[first + 1 :]) / seconds if seconds > 0 else None

    @property
    def carried(self) -> int:
        """Bytes that have arrived."""
        return sum(size for _, size in self._arrivals)
