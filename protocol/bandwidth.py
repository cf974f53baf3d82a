"""How fast our own line is, up and down, by the payloads that pass over it to and from all peers at once. Pure.

Rules:
- Nothing is sent for it, but for a newcomer's first probe (node/run/newcomer.py). What counts is what moves in a
  stretch: as long as at least one payload is on its way.
- The first SETTLE seconds of a stretch do not count: then buffers fill, here or on the way, and TCP finds its pace. So
  what the system takes at once, as on the loopback, tells nothing.
- The rate is that of WINDOW slots together; it rises quickly and forgets slowly, as a line that has too little to do,
  because others are slow, only seems to be slow itself. A line that has become slower is known after some minutes.
- What came is less than what could have come, if the senders' lines are slow. So the downlink is claimed to be twice
  as fast as anybody has tried it, up to the speed of the uplink: who is trusted with more is then measured anew.
- Payloads by a relay are as fast as the relay, and do not count. Those of machines nearby do not pass the line to the
  internet: they count only where there are no others.

A carrier tells the `Gauge` of its peer of each piece when it has passed (gauge.py), which tells the right meters here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

SLOT = 0.25  # seconds
WINDOW, SETTLE = 6, 2  # slots
PAUSE = 0.05  # seconds without a payload on its way, and a stretch is over
RISE, FALL = 0.3, 0.003  # of the way to a new rate, with each slot
SLOWEST = 600.0  # seconds that a piece may take, and tell something
KEPT = int(SLOWEST / SLOT)  # slots that a piece which is still on its way may add to


class Meter:
    """One direction of a line."""

    def __init__(self) -> None:
        self._rate = 0.0  # by what lies before the slots
        self._begin = self._end = -math.inf  # of the stretch, as far as we have its slots
        self._slots: list[float] = []  # bytes
        self._unsettled = SETTLE

    def moved(self, begin: float, end: float, size: int) -> None:
        """A piece was on its way from `begin` to `end`. To be told in the order of the ends, or nearly so."""
        if end - begin > SLOWEST or end < self._begin:
            return
        if begin > self._end + PAUSE:
            self._rate, self._slots, self._unsettled = self.rate, [], SETTLE
            self._begin = begin
        elif len(self._slots) > 2 * KEPT:
            self._fold(KEPT)
        self._end = max(self._end, end)
        self._spread(begin, end, size)

    @property
    def rate(self) -> float:
        """Bytes a second; 0 until it is known."""
        if not self._slots:
            return self._rate
        whole = int((self._end - self._begin) / SLOT)
        return _follow(self._rate, self._slots[self._unsettled : whole])

    def suppose(self, rate: float) -> None:
        """What a probe has found, as nothing has passed yet."""
        self._rate = self._rate or rate

    def _spread(self, begin: float, end: float, size: int) -> None:
        """Over the slots that it was on its way in; what lies before the first one is forgotten."""
        first, last = max(0, int((begin - self._begin) / SLOT)), int((end - self._begin) / SLOT)
        self._slots += [0.0] * (last + 1 - len(self._slots))
        if first == last:
            self._slots[last] += size
            return
        pace = size / (end - begin)
        for slot in range(first, last + 1):
            since, until = self._begin + slot * SLOT, self._begin + (slot + 1) * SLOT
            self._slots[slot] += pace * (min(until, end) - max(since, begin))

    def _fold(self, count: int) -> None:
        """Forget the first slots, but for what follows from them."""
        self._rate = _follow(self._rate, self._slots[self._unsettled : count])
        del self._slots[:count]
        self._begin += count * SLOT
        self._unsettled = 0


@dataclass(frozen=True, slots=True)
class Meters:
    """Both directions."""

    up: Meter = field(default_factory=Meter)
    down: Meter = field(default_factory=Meter)


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Our own."""

    far: Meters = field(default_factory=Meters)  # to peers on the internet
    near: Meters = field(default_factory=Meters)  # to those on this machine or in our own network

    def claim(self) -> tuple[int, int]:
        """What to say of it: bytes a second up and down, 0 where it is not known."""
        line = self.far if self.far.up.rate or self.far.down.rate else self.near
        up, down = line.up.rate, line.down.rate
        return int(up), int(max(down, min(up, 2 * down)))


def _follow(rate: float, slots: list[float]) -> float:
    """What a rate becomes by these slots."""
    for last in range(WINDOW, len(slots) + 1):
        new = sum(slots[last - WINDOW : last]) / (WINDOW * SLOT)
        rate = rate + (new - rate) * (RISE if new > rate else FALL) if rate else new
    return rate
