"""How many bytes go and come, and how fast, measured on real payloads in passing: nothing is sent for it. Pure.

`Gauge` measures one peer: its round trip, and how fast payloads go there and come. `Bandwidth` measures our own line,
by the payloads to and from all peers at once. `Traffic` counts the bytes of one run.

Rules of a peer's rates:
- A rate counts only the time in which bytes were on their way: who waits for somebody's training is not slow.
- What comes is measured between the first piece of a frame and its end; what goes, as long as writing it takes. What
  was written last may still be in buffers on the way: IN_BUFFERS of each burst are not counted.
- A round trip that is shorter than those before weighs more: what makes one longer, a busy machine say, is noise.
- Newer measurements weigh more: what lies MEMORY bytes back counts half.

Rules of our own line's rates:
- What counts is what moves in a stretch: as long as at least one payload is on its way. A newcomer alone sends a probe
  (node/peers/bandwidth_probe.py), as nothing has passed yet.
- The first SETTLE slots of a stretch do not count: then buffers fill, here or on the way, and TCP finds its pace. So
  what the system takes at once, as on the loopback, tells nothing.
- The rate is that of WINDOW slots together; it rises quickly and forgets slowly, as a line that has too little to do,
  because others are slow, only seems to be slow itself. A line that has become slower is known after some minutes.
- What came is less than what could have come, if the senders' lines are slow. So the downlink is claimed to be twice
  as fast as anybody has tried it, up to the speed of the uplink: who is trusted with more is then measured anew.
- Payloads by a relay are as fast as the relay, and do not count. Those of machines nearby do not pass the line to the
  internet: they count only where there are no others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.protocol.base.paths import PATHS

SLOT = 0.25  # seconds
WINDOW, SETTLE = 6, 2  # slots
PAUSE = 0.05  # seconds without a payload on its way that end a burst, or a stretch of the line
RISE, FALL = 0.3, 0.003  # of the way to a new rate, with each slot
SLOWEST = 600.0  # seconds that a piece may take, and tell something
KEPT = int(SLOWEST / SLOT)  # slots that a piece which is still on its way may add to
KEEP, KEEP_LONGER = 0.75, 0.5  # of the smoothed round trip, at each new one; and at one that is shorter
ENOUGH = 256 << 10  # bytes, until a rate is worth showing
MEMORY = 16 << 20  # bytes
IN_BUFFERS = 512 << 10  # bytes
LEAST = 4 * IN_BUFFERS  # bytes of a burst that is counted
LEAST_PIECE = 16 << 10  # bytes; smaller ones are messages


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


@dataclass(slots=True)
class Rate:
    """Bytes a second, forgetting."""

    _bytes: float = 0.0
    _seconds: float = 0.0

    def note(self, size: float, seconds: float) -> None:
        """So many bytes took so long."""
        if size > 0 and seconds > 0:
            keep = 0.5 ** (size / MEMORY)
            self._bytes, self._seconds = keep * self._bytes + size, keep * self._seconds + seconds

    @property
    def value(self) -> float | None:
        """Bytes a second; None if not enough were seen."""
        return self._bytes / self._seconds if self._bytes >= ENOUGH else None


@dataclass(slots=True)
class Burst:
    """Writes that follow each other without a pause."""

    rate: Rate = field(default_factory=Rate)
    _bytes: int = 0
    _seconds: float = 0.0
    _ended: float = 0.0

    def wrote(self, begin: float, end: float, size: int) -> None:
        """`size` bytes were written from `begin` to `end`."""
        if begin - self._ended > PAUSE:
            self._bytes, self._seconds = 0, 0.0
        is_counted = self._bytes >= LEAST
        took = max(0.0, end - max(begin, self._ended))  # two may be written at once, by sockets of their own
        self._bytes, self._seconds, self._ended = self._bytes + size, self._seconds + took, max(end, self._ended)
        if is_counted:
            self.rate.note(size, took)
        elif self._bytes >= LEAST:
            self.rate.note(self._bytes - IN_BUFFERS, self._seconds)


@dataclass(slots=True)
class Gauge:
    """Of one peer; `line` is that part of our own line which its payloads pass, if any."""

    line: Callable[[], Meters | None] = lambda: None
    rtt: float | None = None  # seconds, smoothed
    sent: int = 0  # bytes since we first met
    received: int = 0
    going: Burst = field(default_factory=Burst)
    coming: Rate = field(default_factory=Rate)
    _came_until: float = 0.0

    def trip(self, seconds: float) -> None:
        """A ping was answered."""
        if self.rtt is None:
            self.rtt = seconds
        keep = KEEP_LONGER if seconds < self.rtt else KEEP
        self.rtt = keep * self.rtt + (1 - keep) * seconds

    def wrote(self, begin: float, end: float, size: int) -> None:
        """A payload of `size` bytes was written from `begin` to `end`."""
        self.going.wrote(begin, end, size)
        if size >= LEAST_PIECE and (line := self.line()) is not None:
            line.up.moved(begin, end, size)

    def came(self, begin: float, end: float, size: int) -> None:
        """So much of a frame came from `begin`, when its first piece was there, to `end`."""
        self.coming.note(size, end - max(begin, self._came_until))  # two may come at once
        self._came_until = max(end, self._came_until)
        if size >= LEAST_PIECE and (line := self.line()) is not None:
            line.down.moved(begin, end, size)

    def anew(self) -> None:
        """The path is another now: what was measured is of the old one."""
        self.rtt, self.going, self.coming = None, Burst(), Rate()


@dataclass(slots=True)
class Count:
    """Only ever grows."""

    sent: int = 0
    received: int = 0

    def add(self, sent: int, received: int) -> None:
        """So many bytes more."""
        self.sent += sent
        self.received += received


@dataclass(slots=True)
class Traffic:
    """Only ever grows."""

    control: Count = field(default_factory=Count)
    bulk: dict[str, Count] = field(default_factory=lambda: {path: Count() for path in PATHS})

    @property
    def bulk_sent(self) -> int:
        """By all paths."""
        return sum(each.sent for each in self.bulk.values())

    @property
    def bulk_received(self) -> int:
        """By all paths."""
        return sum(each.received for each in self.bulk.values())

    @property
    def sent(self) -> int:
        """Of both classes."""
        return self.control.sent + self.bulk_sent

    @property
    def received(self) -> int:
        """Of both classes."""
        return self.control.received + self.bulk_received

    def count(self, sent: int, received: int, bulk: str | None) -> None:
        """So many bytes have left, or come, as payloads by a path, or as words."""
        (self.control if bulk is None else self.bulk[bulk]).add(sent, received)
