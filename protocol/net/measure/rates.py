"""Measures traffic and rates on real payloads as they pass; nothing is sent for it. Pure.

`Gauge` measures one peer: its round trip, and the rates of payloads to and from it. `Bandwidth` measures our own line,
by the payloads to and from all peers together. `Traffic` counts the bytes of one run.

Rules for the rates of a peer:
- Only the time in which bytes were on their way counts: waiting for somebody's training is not slowness.
- An incoming frame is measured from its first piece to its end, an outgoing one as long as writing it takes. The bytes
  written last may still be in buffers: IN_BUFFERS of each burst are not counted.
- A round trip shorter than those before weighs more, as longer ones contain noise, such as a busy machine.
- Newer measurements weigh more: what lies MEMORY bytes back counts half.

Rules for the rates of our own line:
- Bytes count while at least one payload is on its way (a stretch). Only a newcomer sends a probe
  (node/peers/bandwidth_probe.py), as nothing has passed yet.
- The first SETTLE slots of a stretch do not count, as buffers fill and TCP speeds up. So what the system takes at once,
  as on loopback, is not measured.
- The rate is that of WINDOW slots together. It rises quickly and falls slowly, as a line that has too little to do,
  because others are slow, only seems slow. A line that has become slower is noticed after some minutes.
- If the senders' lines are slow, less has come than could have come. So we claim a downlink twice as fast as was ever
  seen, up to the rate of the uplink; if we are given more because of that, it is measured anew.
- Payloads through a relay are as fast as the relay, and do not count. Those of machines nearby do not use the line to
  the internet: they count only if there are no others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.protocol.base.paths import PATHS

SLOT = 0.25  # seconds
WINDOW, SETTLE = 6, 2  # slots
PAUSE = 0.05  # seconds without a payload on its way, which end a burst or a stretch
RISE, FALL = 0.3, 0.003  # how much a new rate weighs, with each slot, if it is higher, or lower
SLOWEST = 600.0  # seconds: a piece that takes longer is not counted
KEPT = int(SLOWEST / SLOT)  # slots to which a piece that is still on its way may add
KEEP, KEEP_LONGER = 0.75, 0.5  # how much the smoothed round trip weighs at each new one, and at a shorter one
ENOUGH = 256 << 10  # bytes from which on a rate is shown
MEMORY = 16 << 20  # bytes after which a measurement counts half
IN_BUFFERS = 512 << 10  # bytes of a burst that may be in buffers still
LEAST = 4 * IN_BUFFERS  # bytes from which on a burst counts
LEAST_PIECE = 16 << 10  # bytes; smaller ones are messages, not payloads


class Meter:
    """The rate of one direction of a line, in slots of SLOT seconds."""

    def __init__(self) -> None:
        self._rate = 0.0  # from what came before the slots
        self._begin = self._end = -math.inf  # of the slots of the present stretch
        self._slots: list[float] = []  # bytes
        self._unsettled = SETTLE

    def moved(self, begin: float, end: float, size: int) -> None:
        """A piece of `size` bytes was on its way from `begin` to `end`; to be called about in the order of the ends."""
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
        """Bytes a second; 0 if not known yet."""
        if not self._slots:
            return self._rate
        whole = int((self._end - self._begin) / SLOT)
        return _follow(self._rate, self._slots[self._unsettled : whole])

    def suppose(self, rate: float) -> None:
        """Take the rate that a probe has found, if none is known."""
        self._rate = self._rate or rate

    def _spread(self, begin: float, end: float, size: int) -> None:
        """Divide a piece among the slots in which it was on its way; the part before the first slot is dropped."""
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
        """Drop the first slots, after taking them into the rate."""
        self._rate = _follow(self._rate, self._slots[self._unsettled : count])
        del self._slots[:count]
        self._begin += count * SLOT
        self._unsettled = 0


@dataclass(frozen=True, slots=True)
class Meters:
    """Both directions of a line."""

    up: Meter = field(default_factory=Meter)
    down: Meter = field(default_factory=Meter)


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """The rates of our own line."""

    far: Meters = field(default_factory=Meters)  # to peers on the internet
    near: Meters = field(default_factory=Meters)  # to those on this machine or in our own network

    def claim(self) -> tuple[int, int]:
        """What we tell others: bytes a second up and down, 0 if not known."""
        line = self.far if self.far.up.rate or self.far.down.rate else self.near
        up, down = line.up.rate, line.down.rate
        return int(up), int(max(down, min(up, 2 * down)))


def _follow(rate: float, slots: list[float]) -> float:
    """The rate after these slots."""
    for last in range(WINDOW, len(slots) + 1):
        new = sum(slots[last - WINDOW : last]) / (WINDOW * SLOT)
        rate = rate + (new - rate) * (RISE if new > rate else FALL) if rate else new
    return rate


@dataclass(slots=True)
class Rate:
    """An average of bytes a second in which newer bytes weigh more."""

    _bytes: float = 0.0
    _seconds: float = 0.0

    def note(self, size: float, seconds: float) -> None:
        """Take in `size` bytes that took `seconds`."""
        if size > 0 and seconds > 0:
            keep = 0.5 ** (size / MEMORY)
            self._bytes, self._seconds = keep * self._bytes + size, keep * self._seconds + seconds

    @property
    def value(self) -> float | None:
        """Bytes a second; None if too few bytes were seen."""
        return self._bytes / self._seconds if self._bytes >= ENOUGH else None


@dataclass(slots=True)
class Burst:
    """The rate of writes, in bursts: writes that follow each other without a pause."""

    rate: Rate = field(default_factory=Rate)
    _bytes: int = 0
    _seconds: float = 0.0
    _ended: float = 0.0

    def wrote(self, begin: float, end: float, size: int) -> None:
        """`size` bytes were written from `begin` to `end`."""
        if begin - self._ended > PAUSE:
            self._bytes, self._seconds = 0, 0.0
        is_counted = self._bytes >= LEAST
        took = max(0.0, end - max(begin, self._ended))  # two sockets may write at once
        self._bytes, self._seconds, self._ended = self._bytes + size, self._seconds + took, max(end, self._ended)
        if is_counted:
            self.rate.note(size, took)
        elif self._bytes >= LEAST:
            self.rate.note(self._bytes - IN_BUFFERS, self._seconds)


@dataclass(slots=True)
class Gauge:
    """The measurements of one peer; `line` gives the meters of our own line that its payloads use, if any."""

    line: Callable[[], Meters | None] = lambda: None
    rtt: float | None = None  # seconds, smoothed
    sent: int = 0  # bytes so far
    received: int = 0
    going: Burst = field(default_factory=Burst)
    coming: Rate = field(default_factory=Rate)
    _came_until: float = 0.0

    def trip(self, seconds: float) -> None:
        """A ping was answered after so many seconds."""
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
        """`size` bytes of a frame came after its first piece, which was there at `begin`, until `end`."""
        self.coming.note(size, end - max(begin, self._came_until))  # two frames may come at once
        self._came_until = max(end, self._came_until)
        if size >= LEAST_PIECE and (line := self.line()) is not None:
            line.down.moved(begin, end, size)

    def reset(self) -> None:
        """Forget the measurements, as the path has changed."""
        self.rtt, self.going, self.coming = None, Burst(), Rate()


@dataclass(slots=True)
class Count:
    """Bytes in both directions."""

    sent: int = 0
    received: int = 0

    def add(self, sent: int, received: int) -> None:
        """Count bytes."""
        self.sent += sent
        self.received += received


@dataclass(slots=True)
class Traffic:
    """The bytes of one run: of control messages, and of payloads by each path."""

    control: Count = field(default_factory=Count)
    bulk: dict[str, Count] = field(default_factory=lambda: {path: Count() for path in PATHS})

    @property
    def bulk_sent(self) -> int:
        """Bytes of payloads sent, by all paths."""
        return sum(each.sent for each in self.bulk.values())

    @property
    def bulk_received(self) -> int:
        """Bytes of payloads received, by all paths."""
        return sum(each.received for each in self.bulk.values())

    @property
    def sent(self) -> int:
        """All bytes sent."""
        return self.control.sent + self.bulk_sent

    @property
    def received(self) -> int:
        """All bytes received."""
        return self.control.received + self.bulk_received

    def count(self, sent: int, received: int, bulk: str | None) -> None:
        """Count bytes: as payloads by the path `bulk`, or as messages if it is None."""
        (self.control if bulk is None else self.bulk[bulk]).add(sent, received)
