"""What a link does to packets; the clock, sockets and randomness are its caller's.

- A packet waits until the line is free, occupies it for its size at the line's rate, may be lost, and comes out after
  the delay. A packet that would wait longer than the queue holds is dropped (drop-tail), as is one that is too large.
- `delay` is one way and per link: two hosts behind links of 25 ms are 50 ms apart, and their round trip takes 100.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Link:
    """A machine's line to the internet, the same in both directions unless `up` says otherwise."""

    delay: float = 0.0  # seconds, one way
    rate: float = math.inf  # bits per second, of whole IP packets
    loss: float = 0.0  # the share of packets that vanish, in each direction
    up: float | None = None  # bits per second away from the machine, if slower than towards it
    queue: float = 0.2  # seconds' worth of packets that wait for the line; no line of infinite rate has a queue
    mtu: int = 1_500  # bytes; larger packets vanish, without an ICMP error

    def __post_init__(self) -> None:
        slowest = self.rate if self.up is None else min(self.rate, self.up)
        if min(self.delay, self.queue) < 0 or not 0 <= self.loss <= 1 or slowest <= 0:
            raise ValueError(f"no link can be like this: {self}")

    def __str__(self) -> str:
        rate = "" if math.isinf(self.rate) else f"{self.rate / 1e6:g} Mbit/s"
        up = f"{self.up / 1e6:g} up" if self.up else ""
        delay = f"{self.delay * 1e3:g} ms" if self.delay else ""
        loss = f"{self.loss:.1%} lost" if self.loss else ""
        return ", ".join(filter(None, (rate, up, delay, loss))) or "no limits"


class Lane:
    """One direction of a link; counts the packets that were carried, lost and dropped."""

    def __init__(self, link: Link, rate: float, random: Random) -> None:
        self._delay, self._loss, self._queue, self._mtu = link.delay, link.loss, link.queue, link.mtu
        self._seconds_per_byte = 8 / rate
        self._random = random
        self._free = -math.inf  # when the line will be free
        self.carried = self.lost = self.dropped = 0

    def enter(self, now: float, size: int) -> float | None:
        """When a packet that enters now comes out; None if it does not."""
        start = max(now, self._free)
        if start - now > self._queue or size > self._mtu:
            self.dropped += 1
            return None
        self._free = start + size * self._seconds_per_byte
        if self._loss and self._random.random() < self._loss:
            self.lost += 1
            return None
        self.carried += 1
        return self._free + self._delay


def lanes(link: Link, random: Random) -> tuple[Lane, Lane]:
    """The two directions of a link: away from its machine, and towards it."""
    return Lane(link, link.up or link.rate, random), Lane(link, link.rate, random)
