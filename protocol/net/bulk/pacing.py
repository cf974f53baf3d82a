"""How fast each socket may send, so that peers who are sent to at once get even parts of our line.

TCP connections that share a line take uneven parts of it, and a round ends with the slowest. So each is held to its
part (SO_MAX_PACING_RATE) of what the line carries, which is found out by the way (found_rate.py).

Rules:
- Only sockets to peers on the internet are paced, as those pass our line; on Linux alone; and not before our line was
  full once. One peer alone gets all of it.
- Sockets to one peer share its part, and have it for LINGER seconds beyond their last payload: where a part that is
  free goes to the others at once, they rush into the receivers' lines, and what was gained is lost.
- Senders' threads say when they begin and when they rest. What passes is looked at in the loop, each TICK in which a
  part is held.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from shoal.protocol.base.ids import PeerId
from shoal.protocol.net.bulk.filling import Path, look
from shoal.protocol.net.bulk.found_rate import FoundRate, Passed

TICK = 0.25  # seconds
LINGER = 2.0  # seconds
CLOSE = 0.02  # of a socket's rate: a smaller change is not worth a call
SO_MAX_PACING_RATE = 47  # of Linux, asm-generic/socket.h; bytes a second
UNLIMITED = 0xFFFFFFFF


class Turn(Protocol):
    """What the thread of one socket says to whoever paces it."""

    def take(self) -> None:
        """There is something to send."""

    def rest(self) -> None:
        """There is nothing more, for now or for good."""


class Unpaced:
    """Of a socket that sends as fast as TCP lets it."""

    def take(self) -> None:
        """Go on."""

    def rest(self) -> None:
        """Nobody counts it."""


class Pacing:
    """All sockets that send over our line."""

    def __init__(self, found: FoundRate | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._found, self._clock = found or FoundRate(), clock
        self._lock = threading.Lock()
        self._turns: dict[Paced, float] = {}  # until when they have their parts; for ever while they send
        self._is_looking = False
        self._looked = 0.0

    def turn(self, peer: PeerId, connection: socket.socket, path: Path) -> Turn:
        """For a socket to a peer; to be called in the loop."""
        if sys.platform != "linux":
            return Unpaced()
        return Paced(self, asyncio.get_running_loop(), peer, connection, path)

    def begin(self, turn: Paced) -> None:
        """It sends; in its thread."""
        with self._lock:
            if turn not in self._turns:
                turn.passed()  # what arrived before is no news
            self._turns[turn] = math.inf
            turn.hold(self._parts()[turn.peer])
            if not self._is_looking:
                self._is_looking, self._looked = True, self._clock()
                with suppress(RuntimeError):  # the loop is closed
                    turn.loop.call_soon_threadsafe(self._look_soon, turn.loop)

    def end(self, turn: Paced) -> None:
        """It does not any more; in its thread."""
        with self._lock:
            self._turns[turn] = self._clock() + LINGER

    def look(self) -> bool:
        """What has passed, and what follows; whether there is more to see. In the loop."""
        with self._lock:
            now = self._clock()
            self._turns = {turn: until for turn, until in self._turns.items() if until > now}
            passed = self._passed()
            if passed and math.inf in self._turns.values():
                self._found.see(now - self._looked, passed, len({turn.peer for turn in self._turns}))
            self._looked = now
            for turn in self._turns:
                turn.hold(self._parts()[turn.peer])
            self._is_looking = bool(self._turns)
            return self._is_looking

    def _look_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(TICK, self._go_on, loop)

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.look():
            self._look_soon(loop)

    def _passed(self) -> list[Passed]:
        """To each peer to whom anything did."""
        sizes, queues = Counter[PeerId](), set[PeerId]()
        for turn in self._turns:
            if (news := turn.passed()).size:
                sizes[turn.peer] += news.size
                if news.has_queue:
                    queues.add(turn.peer)
        return [Passed(size, peer in queues) for peer, size in sizes.items()]

    def _parts(self) -> dict[PeerId, int]:
        """Bytes a second for each socket to a peer."""
        sockets = Counter(turn.peer for turn in self._turns)
        if not self._found.rate or len(sockets) < 2:
            return dict.fromkeys(sockets, UNLIMITED)
        part = self._found.rate / len(sockets)
        return {peer: max(1, min(UNLIMITED, round(part / count))) for peer, count in sockets.items()}


class Paced:
    """The turn of one socket."""

    def __init__(
        self, pacing: Pacing, loop: asyncio.AbstractEventLoop, peer: PeerId, connection: socket.socket, path: Path
    ) -> None:
        self.peer, self.loop = peer, loop
        self._pacing, self._socket, self._path = pacing, connection, path
        self._is_sending = False
        self._arrived = 0  # bytes
        self._rate = UNLIMITED

    def take(self) -> None:
        """See Turn."""
        if not self._is_sending:
            self._is_sending = True
            self._pacing.begin(self)

    def rest(self) -> None:
        """See Turn."""
        if self._is_sending:
            self._is_sending = False
            self._pacing.end(self)

    def passed(self) -> Passed:
        """Since it was asked last."""
        if (seen := look(self._socket)) is None:
            return Passed(0, has_queue=False)
        size, self._arrived = seen.arrived - self._arrived, seen.arrived
        return Passed(size, has_queue=not self._path.has_no_queue(seen))

    def hold(self, rate: int) -> None:
        """To so many bytes a second."""
        if abs(rate - self._rate) > CLOSE * self._rate:
            self._rate = rate
            with suppress(OSError):  # it is closed
                self._socket.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=I", rate))
