"""How fast a path is, by a probe: how much to put on its way now, and what rate follows from what has arrived. Pure.

Rules:
- It is short: MOST bytes or LONGEST seconds, whichever comes first.
- It stands in nobody's way: what is on its way grows as long as the parts come soon, and shrinks as soon as they take
  QUEUE longer than the fastest did. So messages and pings wait for no more than that.
- The first half of the time is not counted: in it TCP, and we, find the pace. Where the round trip is so long that it
  is not found at all, the rate is less than the path has.
"""

from __future__ import annotations

MOST, LONGEST = 4 << 20, 2.0  # bytes, seconds
SMALLEST, LARGEST = 16 << 10, 128 << 10  # bytes of a part
FIRST_WINDOW, MOST_WINDOW = 2 * SMALLEST, 2 << 20
QUEUE = 0.15  # seconds
LEAST_PARTS = 4  # that have arrived, and there is a rate


class BandwidthProbe:
    """One direction of one path."""

    def __init__(self, now: float, most: int = MOST) -> None:
        self._begin, self._most = now, most
        self._begun = self._flying = 0  # bytes
        self._window = FIRST_WINDOW
        self._fastest = float("inf")
        self._arrivals: list[tuple[float, int]] = []

    def next(self, now: float) -> int:
        """The size of a part to be begun now; 0: none."""
        size = min(LARGEST, max(SMALLEST, self._window // 4), self._most - self._begun)
        if size <= 0 or now >= self._begin + LONGEST or (self._flying and self._flying + size > self._window):
            return 0
        self._begun += size
        self._flying += size
        return size

    def arrived(self, now: float, size: int, took: float) -> None:
        """A part has, `took` seconds after it was begun."""
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
