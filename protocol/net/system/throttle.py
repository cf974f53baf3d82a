"""The owner's rate limits: how many bytes a second a node sends and receives, one limit per direction, over all peers.

Rules:
- All bytes are counted as they pass, and counting delays nothing: control messages leave at once, whatever waits. So
  the account may be in debt for a moment.
- Payloads pay the debt. After each piece of a payload its stream pauses once, until the debt of that moment is paid.
  So all streams together keep the rate and each gets its turn, without knowing of each other. Pieces are short, so
  that the line is used evenly.
- Rates are those on the wire: a connection's bytes are counted with HEADERS for each SEGMENT (IPv4, TCP and its time
  stamps), and with one acknowledgement in the other direction for ANSWERED segments. Where segments are longer
  (loopback) that is 4 % too much; with IPv6, or an acknowledgement for every second segment, 1 or 2 % too little. TCP's
  retransmissions are not seen here.
- They hold for all peers alike, on local networks too, and for what we relay: which peers are behind the bottleneck is
  not known.
- They hold over seconds, not at each moment: a paused stream may have 256 KiB on its way to us, and a process that is
  not scheduled for longer than BURST loses what it could have sent.
- Without a rate, bytes are only counted. All of this is thread-safe.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from shoal.protocol.base.allowance import Allowance

HEADERS, SEGMENT, ANSWERED = 52, 1448, 4  # bytes, bytes, segments
BURST, LEAST_BURST = 0.2, 64 << 10  # what may pass at once after a silence: seconds of the rate, at least bytes
PIECE, SHORTEST_PIECE, LONGEST_PIECE = 0.05, 4 << 10, 64 << 10  # seconds of the rate, within these bytes
UNPACED, MAX_UNPACED = 1 / 16, 64 << 10  # what a stream may pass without pauses: of the rate, at most bytes a second
WINDOW, SMALLEST_WINDOW, LARGEST_WINDOW = 0.25, 256 << 10, 8 << 20  # seconds of the rate, within these bytes


class RateLimit:
    """The limit of one direction. `rate` is in bytes a second; None: unlimited."""

    def __init__(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self.clock, self._sleep = clock, sleep
        self.rate: float | None = None
        self.total = 0  # bytes on the wire so far
        self.back: RateLimit | None = None  # the other direction, in which TCP's acknowledgements go
        self._allowance: Allowance | None = None
        self._lock = threading.Lock()

    def cap(self, rate: float | None) -> None:
        """Set the rate, at any time; None takes it away."""
        with self._lock:
            self.rate = rate
            self._allowance = Allowance(max(LEAST_BURST, BURST * rate), rate) if rate is not None else None

    def count(self, size: int) -> None:
        """Count bytes of a connection that have passed or are about to. Never waits."""
        self._pay(size + HEADERS * -(-size // SEGMENT))
        if self.back is not None:
            self.back._pay(HEADERS * size // (ANSWERED * SEGMENT))

    def spend(self, size: int) -> None:
        """Count payload that is about to be sent or was just received, and block until the debt is paid.

        For threads with sockets of their own. To be called piece by piece (`piece`), so that sending is even.
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
        """Seconds until all bytes that have passed are paid for."""
        if self._allowance is None:
            return 0.0
        with self._lock:
            return self._allowance.owe(self.clock(), 0)

    @property
    def piece(self) -> int:
        """How many bytes of payload should pass between two pauses."""
        if self.rate is None:
            return LONGEST_PIECE
        return int(min(max(SHORTEST_PIECE, PIECE * self.rate), LONGEST_PIECE))

    def _pay(self, size: int) -> None:
        with self._lock:
            self.total += size
            if self._allowance is not None:
                self._allowance.owe(self.clock(), size)


class Throttle:
    """Both directions of one node; unlimited until `up.cap` and `down.cap` set rates."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.is_shut = False  # whether the node is paused: then nothing is relayed for others
        self.up, self.down = RateLimit(clock, sleep), RateLimit(clock, sleep)
        self.up.back, self.down.back = self.down, self.up

    @property
    def total(self) -> int:
        """Bytes on the wire in both directions so far."""
        return self.up.total + self.down.total


class StreamPace:
    """When one stream, in one direction, has to pause. Its bytes are counted by its connection, not here.

    A stream that passes only a few messages a second (UNPACED) never pauses.
    """

    def __init__(self, flow: RateLimit) -> None:
        self._flow, self._due = flow, 0.0
        self._rate: float | None = None  # for which `_allowance` was made
        self._allowance: Allowance | None = None

    @property
    def _unpaced(self) -> Allowance | None:
        """What may pass without a pause; None without a rate. The owner may change the rate while the stream lives."""
        if (rate := self._flow.rate) != self._rate:
            unpaced = min(UNPACED * rate, MAX_UNPACED) if rate is not None else 0.0
            self._rate, self._allowance = rate, Allowance(unpaced, unpaced) if rate is not None else None
        return self._allowance

    @property
    def is_free(self) -> bool:
        """Whether it does not pause, as there is no rate."""
        return self._unpaced is None

    @property
    def piece(self) -> int:
        """How many bytes should pass between two pauses."""
        return self._flow.piece

    @property
    def window(self) -> int:
        """How many bytes a peer may have on their way to us: few enough that they come evenly and within the rate."""
        return int(min(max(SMALLEST_WINDOW, WINDOW * (self._flow.rate or LARGEST_WINDOW)), LARGEST_WINDOW))

    @property
    def rest(self) -> float:
        """Seconds until the next piece may pass."""
        return 0.0 if self._unpaced is None else max(0.0, self._due - self._flow.clock())

    def passed(self, size: int) -> None:
        """The stream has passed so many bytes."""
        unpaced = self._unpaced
        if unpaced is not None and not unpaced.take(now := self._flow.clock(), size):
            self._due = now + self._flow.debt

    def pieces(self, data: bytes | memoryview) -> Iterator[bytes | memoryview]:
        """`data` in pieces, between which the stream may pause; in one piece if there is no rate."""
        if self._unpaced is None or len(data) <= self.piece:
            yield data
            return
        view, size = memoryview(data), self.piece
        yield from (view[start : start + size] for start in range(0, len(view), size))
