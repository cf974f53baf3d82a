"""Paces bulk sockets, so that all peers that we send to get even parts of our line (the internet uplink).

TCP connections that share a line take uneven parts of it, and a round ends with the slowest. So each is held to its
part (SO_MAX_PACING_RATE) of the line's rate, which is estimated from our own payloads (`LineRate`).

Rules of pacing (`Pacing`):
- Only sockets to peers on the internet are paced, as only those use the line; only on Linux; and not before the line
  was full once. A single peer gets all of it.
- Sockets to one peer share its part, and keep it for LINGER seconds after their last payload: if a free part went to
  the others at once, they would flood the receivers' lines, and nothing would be gained.
- The senders' threads say when they begin and stop to send. Every TICK the event loop looks at what has arrived, as
  long as any part is held.

Rules of the line's rate (`LineRate`, pure). A queue on (nearly) all paths at once may be in our own line; the line is
then full, and what arrives is what it carries. A queue on some paths only is further away and says little of our line.
- A path without something to send or unconfirmed for most of an interval shows no queue: what arrives there is what we
  had, and not what the line carries. Nor does one on which nothing arrives: its peer may be gone.
- Nothing is known until the line was full for ENOUGH seconds: a line that is never full needs no pacing. The first
  estimate is too low, as TCP is still speeding up, so it is multiplied by FIRST.
- The line is full if there are queues on nearly all paths and less arrives than the rate allows. The rate then falls
  to a little less than what arrives (DRAIN), so that the queue gets shorter, but not faster than FALL. The best time
  of the last MEMORY seconds counts, as lines stall for a moment.
- If all that the rate allows arrives, the queue is not in our line, or delays only the acknowledgements. It may stay
  for ever, so we must not yield to it: the rate rises whenever most peers are being sent to and one of them gets all of
  its part. It rises slowly, as it was right not long ago, and ever faster after CALM seconds. While most paths have a
  queue, it rises only after these seconds.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from shoal.protocol.base.ids import PeerId
from shoal.protocol.net.bulk.spare_capacity import BUSY, PathRtt, TcpInfo, tcp_info

TICK = 0.25  # seconds between two looks at what has arrived
LINGER = 2.0  # seconds for which a socket that has stopped sending keeps its part
CLOSE = 0.02  # of a socket's rate: a smaller change is not worth a system call
SO_MAX_PACING_RATE = 47  # of Linux, asm-generic/socket.h; bytes a second
UNLIMITED = 0xFFFFFFFF
FULL = 0.75  # of the paths: the line may be full if so many have a queue
STALLED = 0.6  # seconds between two looks: then this machine was too busy to send, and the interval tells nothing
ENOUGH = 0.9  # seconds of a full line that tell its rate
FIRST = 1.2  # times what arrives is the first estimate
PASSES = 0.97  # of the rate: if as much arrives, all that is allowed does
DRAIN = 0.95  # of what arrives is the new rate of a full line
FALL = 0.4  # of the rate a second, at most: slow receivers use little of their parts, so what arrives may be far less
MEMORY = 4.0  # seconds of sending whose best counts
MORE = 1.1  # times the rate: more than a draining queue explains, so the rate was too low
RISE, FASTEST = 0.04, 0.64  # of the rate a second: how fast it rises at first, and at most
CALM = 3.0  # seconds since the line was full, after which the rise doubles each second
HELD = 0.8  # of its part: a peer that gets more than this counts as getting all


@dataclass(frozen=True, slots=True)
class Delivered:
    """What has arrived at one peer since the last look."""

    size: int  # bytes
    has_queue: bool
    is_busy: bool = True  # with something to send or unconfirmed, nearly all the time


class LineRate:
    """The estimated rate of our line: bytes a second that all peers share; 0 until it is known."""

    def __init__(self) -> None:
        self.rate = 0.0
        self._full: deque[tuple[float, int]] = deque()  # (seconds, bytes) of each interval since the line seems full
        self._carried: deque[tuple[float, float]] = deque()  # (`_sent_for`, bytes a second) while it seemed full
        self._sent_for = self._calm_for = 0.0  # seconds

    def see(self, seconds: float, passed: Collection[Delivered], parts: int) -> None:
        """Take in one interval: what arrived at each peer, and into how many `parts` the rate is divided now."""
        if seconds > STALLED:
            return
        self._sent_for += seconds
        queues = sum(each.has_queue for each in passed)
        if queues < FULL * len(passed):
            self._full.clear()
        elif not self._is_enough(seconds, sum(each.size for each in passed)) or not self._passes(seconds):
            return
        held = HELD * self.rate / parts * seconds
        if self.rate and 2 * len(passed) > parts and any(each.size > held for each in passed):
            self._calm_for += seconds
            if 2 * queues <= len(passed) or self._calm_for > CALM:
                step = min(FASTEST, RISE * 2 ** max(0.0, self._calm_for - CALM))
                self.rate *= (1 + step) ** seconds

    def _is_enough(self, seconds: float, size: int) -> bool:
        """Note an interval with queues; whether there are enough of them to know what a full line carries."""
        self._full.append((seconds, size))
        while sum(each for each, _ in self._full) - self._full[0][0] >= ENOUGH:
            self._full.popleft()
        if (whole := sum(each for each, _ in self._full)) < ENOUGH:
            return False
        self._carried.append((self._sent_for, sum(each for _, each in self._full) / whole))
        while self._carried[0][0] <= self._sent_for - MEMORY:
            self._carried.popleft()
        return True

    def _passes(self, seconds: float) -> bool:
        """Whether all that the rate allows arrives; if not, lower the rate."""
        carried = max(each for _, each in self._carried)
        if not self.rate:
            self.rate = FIRST * carried
            self._full.clear()
            self._carried.clear()
        elif carried < PASSES * self.rate:
            self.rate = max(DRAIN * carried, self.rate * (1 - FALL) ** seconds)
        else:
            self.rate = max(self.rate, carried / MORE)
            return True
        self._calm_for = 0.0
        return False


class SocketPacer(Protocol):
    """What a sender's thread tells the pacing of its socket."""

    def take(self) -> None:
        """The socket begins to send, or goes on."""

    def rest(self) -> None:
        """It has nothing more to send, for now or for good."""


class Unpaced:
    """The pacer of a socket that sends as fast as TCP lets it."""

    def take(self) -> None:
        """Nothing to do."""

    def rest(self) -> None:
        """Nothing to do."""


class Pacing:
    """Holds all sockets that send over our line to even parts of its rate. Thread-safe."""

    def __init__(self, line: LineRate | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._line, self._clock = line or LineRate(), clock
        self._lock = threading.Lock()
        self._sockets: dict[PacedSocket, float] = {}  # until when each keeps its part; inf while it sends
        self._is_looking = False
        self._looked_at = 0.0

    def pacer(self, peer: PeerId, connection: socket.socket, path: PathRtt) -> SocketPacer:
        """The pacer of a new socket to a peer; to be called in the loop."""
        if sys.platform != "linux":
            return Unpaced()
        return PacedSocket(self, asyncio.get_running_loop(), peer, connection, path)

    def begin(self, pacer: PacedSocket) -> None:
        """A socket begins to send; called in its thread."""
        with self._lock:
            if pacer not in self._sockets:
                pacer.passed()  # what arrived before does not count
            self._sockets[pacer] = math.inf
            pacer.hold(self._parts()[pacer.peer])
            if not self._is_looking:
                self._is_looking, self._looked_at = True, self._clock()
                with suppress(RuntimeError):  # the loop is closed
                    pacer.loop.call_soon_threadsafe(self._look_soon, pacer.loop)

    def end(self, pacer: PacedSocket) -> None:
        """A socket stops sending; called in its thread."""
        with self._lock:
            self._sockets[pacer] = self._clock() + LINGER

    def look(self) -> bool:
        """See what has arrived, and set all rates anew; whether another look is needed. Called in the loop."""
        with self._lock:
            now = self._clock()
            self._sockets = {pacer: until for pacer, until in self._sockets.items() if until > now}
            passed = self._passed()
            is_sending = math.inf in self._sockets.values() or any(each.is_busy for each in passed)
            if passed and is_sending:
                self._line.see(now - self._looked_at, passed, len({pacer.peer for pacer in self._sockets}))
            self._looked_at = now
            for pacer in self._sockets:
                pacer.hold(self._parts()[pacer.peer])
            self._is_looking = bool(self._sockets)
            return self._is_looking

    def _look_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(TICK, self._go_on, loop)

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.look():
            self._look_soon(loop)

    def _passed(self) -> list[Delivered]:
        """What has arrived at each peer, without peers at which nothing has."""
        sizes, queues, busy = Counter[PeerId](), set[PeerId](), set[PeerId]()
        for pacer in self._sockets:
            if (news := pacer.passed()).size:
                sizes[pacer.peer] += news.size
                queues |= {pacer.peer} if news.has_queue else set()
                busy |= {pacer.peer} if news.is_busy else set()
        return [Delivered(size, peer in queues & busy, peer in busy) for peer, size in sizes.items()]

    def _parts(self) -> dict[PeerId, int]:
        """The rate of each socket to a peer, in bytes a second."""
        sockets = Counter(pacer.peer for pacer in self._sockets)
        if not self._line.rate or len(sockets) < 2:
            return dict.fromkeys(sockets, UNLIMITED)
        part = self._line.rate / len(sockets)
        return {peer: max(1, min(UNLIMITED, round(part / count))) for peer, count in sockets.items()}


class PacedSocket:
    """The pacer of one socket."""

    def __init__(
        self, pacing: Pacing, loop: asyncio.AbstractEventLoop, peer: PeerId, connection: socket.socket, path: PathRtt
    ) -> None:
        self.peer, self.loop = peer, loop
        self._pacing, self._socket, self._path = pacing, connection, path
        self._is_sending = False
        self._seen: TcpInfo | None = None  # at the last look
        self._rate = UNLIMITED

    def take(self) -> None:
        """See SocketPacer."""
        if not self._is_sending:
            self._is_sending = True
            self._pacing.begin(self)

    def rest(self) -> None:
        """See SocketPacer."""
        if self._is_sending:
            self._is_sending = False
            self._pacing.end(self)

    def passed(self) -> Delivered:
        """What has arrived since the last call."""
        if (seen := tcp_info(self._socket)) is None:
            return Delivered(0, has_queue=False)
        last, self._seen = self._seen, seen
        has_queue = not self._path.has_no_queue(seen)
        if last is None:
            return Delivered(seen.arrived, has_queue, is_busy=False)
        is_busy = seen.busy - last.busy >= BUSY * (seen.at - last.at)
        return Delivered(seen.arrived - last.arrived, has_queue, is_busy)

    def hold(self, rate: int) -> None:
        """Limit the socket to so many bytes a second."""
        if abs(rate - self._rate) > CLOSE * self._rate:
            self._rate = rate
            with suppress(OSError):  # it is closed
                self._socket.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=I", rate))
