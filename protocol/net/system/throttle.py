"""How much a node may send and receive a second, as its owner has said: one rate for each direction, over all peers.

Rules:
- Everything is counted as it passes, and nothing is held up by being counted: words leave at once, whatever waits. So
  there may be a debt, for a moment.
- Payload pays it. Whoever has passed a piece of it rests for as long as the debt of that moment takes to be paid, once,
  and then passes the next piece. All that do so keep to the rate together, each gets its turn, and nobody has to
  know of the others. Pieces are short, so that the line is used evenly.
- Rates are those of the wire. A connection's bytes are counted with HEADERS for each SEGMENT of them (IPv4, TCP and
  its time stamps), and with one answer the other way for ANSWERED segments. Where segments are longer (the loopback)
  that is 4 % too much, and with IPv6 or answers to every second segment 1 or 2 % too little; what TCP sends a second
  time is not seen from here.
- They hold for all peers alike, on local networks too, and for what a relay passes on: which peers are behind the
  bottleneck is not known.
- They hold over seconds, not at each moment: a stream that rests may have 256 KiB on its way to us, and a process that
  does not get its turn for longer than BURST loses what it could have sent.
- Without a rate, counting is all that is done. Any thread may use all of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from shoal.protocol.base.allowance import Allowance

HEADERS, SEGMENT, ANSWERED = 52, 1448, 4  # bytes, bytes, segments
BURST, LEAST_BURST = 0.2, 64 << 10  # seconds of the rate, and bytes: what may pass at once after a silence
PIECE, SHORTEST_PIECE, LONGEST_PIECE = 0.05, 4 << 10, 64 << 10  # seconds of the rate, within these bytes
WORDS, MOST_WORDS = 1 / 16, 64 << 10  # of the rate, and bytes a second: what a stream may pass without a rest
WINDOW, SMALLEST_WINDOW, LARGEST_WINDOW = 0.25, 256 << 10, 8 << 20  # seconds of the rate, within these bytes


class RateLimit:
    """One direction. `rate` is in bytes a second; None: as fast as it can."""

    def __init__(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self.clock, self._sleep = clock, sleep
        self.rate: float | None = None
        self.total = 0  # bytes on the wire since we began
        self.back: RateLimit | None = None  # the way that TCP's answers go
        self._allowance: Allowance | None = None
        self._lock = threading.Lock()

    def cap(self, rate: float | None) -> None:
        """From now on; before the first connection, as each looks once whether there is a rate."""
        with self._lock:
            self.rate = rate
            self._allowance = Allowance(max(LEAST_BURST, BURST * rate), rate) if rate is not None else None

    def count(self, size: int) -> None:
        """So many bytes of a connection have passed, or do so now. Never waits."""
        self._pay(size + HEADERS * -(-size // SEGMENT))
        if self.back is not None:
            self.back._pay(HEADERS * size // (ANSWERED * SEGMENT))

    def spend(self, size: int) -> None:
        """Payload of one connection, about to be sent or just received: count it, and block until its turn is over.

        For threads with sockets of their own. Call it piece by piece (`piece`), so that what is sent is even, too.
        """
        if self.rate is None:
            self.count(size)
            return
        while size > 0:
            part = min(size, self.piece)
            self.count(part)
            if (rest := self.debt) > 0:
                self._sleep(rest)
            size -= part

    @property
    def debt(self) -> float:
        """Seconds until all that has passed is paid for."""
        if self._allowance is None:
            return 0.0
        with self._lock:
            return self._allowance.owe(self.clock(), 0)

    @property
    def piece(self) -> int:
        """How many bytes of payload should pass between two rests."""
        if self.rate is None:
            return LONGEST_PIECE
        return int(min(max(SHORTEST_PIECE, PIECE * self.rate), LONGEST_PIECE))

    def _pay(self, size: int) -> None:
        with self._lock:
            self.total += size
            if self._allowance is not None:
                self._allowance.owe(self.clock(), size)


class Throttle:
    """Both directions of one node. Without rates until they are set by `up.cap` and `down.cap`."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.is_shut = False  # the owner's volume is used up: nothing is carried for others
        self.up, self.down = RateLimit(clock, sleep), RateLimit(clock, sleep)
        self.up.back, self.down.back = self.down, self.up

    @property
    def total(self) -> int:
        """Bytes on the wire, both ways, since we began."""
        return self.up.total + self.down.total


class Pace:
    """One stream in one direction: when it is to rest. What it passes was counted by its connection.

    A stream that passes no more than some words a second never rests.
    """

    def __init__(self, flow: RateLimit) -> None:
        self._flow, self._due = flow, 0.0
        words = min(WORDS * flow.rate, MOST_WORDS) if flow.rate is not None else 0.0
        self._words = Allowance(words, words) if flow.rate is not None else None

    @property
    def is_free(self) -> bool:
        """Whether it never rests, as there is no rate."""
        return self._words is None

    @property
    def piece(self) -> int:
        """How many bytes should pass between two rests."""
        return self._flow.piece

    @property
    def window(self) -> int:
        """How many bytes a peer may have on their way to us, so that they come evenly, and no faster than they may."""
        return int(min(max(SMALLEST_WINDOW, WINDOW * (self._flow.rate or LARGEST_WINDOW)), LARGEST_WINDOW))

    @property
    def rest(self) -> float:
        """Seconds until the next piece may pass."""
        return 0.0 if self._words is None else max(0.0, self._due - self._flow.clock())

    def passed(self, size: int) -> None:
        """So many bytes have."""
        if self._words is not None and not self._words.take(now := self._flow.clock(), size):
            self._due = now + self._flow.debt

    def pieces(self, data: bytes | memoryview) -> Iterator[bytes | memoryview]:
        """`data`, cut so that each piece may be followed by a rest; whole if there is no rate."""
        if self._words is None or len(data) <= self.piece:
            yield data
            return
        view, size = memoryview(data), self.piece
        yield from (view[start : start + size] for start in range(0, len(view), size))
