"""Whether a path has room for another connection, by the kernel's TCP_INFO; pure, but for `tcp_info`.

Where packets are lost without a queue (a noisy line, an ocean cable), a TCP that takes each loss for a full queue sends
less than the path carries: about MSS / (RTT x sqrt(loss)) for each connection (Mathis et al. 1997). There two
connections carry twice as much. Where the line is full, they only take from each other.

A path has room beside this connection if, for most of a window in which it always had something to send, there was no
queue (the round trip was hardly longer than the shortest on this path), and
- it was held back by losses: its congestion control is loss-based, it is beyond its slow-start threshold (RFC 5681),
  had a loss not long ago, and had more to send than the network took, while the receiver's window was open;
- or it was held back by its send buffer: the path holds more than the system allows one connection.

Nearby peers need no second connection, as there the processor is the limit. Only Linux reports all of this. A policer,
or a router that keeps its queue very short (CoDel), looks like a path with room: there a second connection gains
nothing for the line, only a larger part of it for us.
"""

from __future__ import annotations

import math
import socket
import struct
import sys
import time
from dataclasses import dataclass

WINDOW = 2.0  # seconds with something to send
LOOKS = 5  # at least, in a window
APART = 0.05  # seconds between two looks, at least: the kernel counts in steps of up to 10 ms
BUSY = 0.8  # of the time between two looks: with less, it had nothing to send, or waited for us
MOSTLY = 0.75  # of the window it was held back
QUEUE = (0.25, 0.015)  # beyond the shortest round trip, of it and in seconds: from either on there is a queue
FAR = 0.005  # seconds of round trip; less is nearby
LOST_WITHIN = 10.0  # seconds of sending since the last loss
NO_PACING = 1 << 63  # bytes a second: a pacing rate from here on means that none is set
LOSS_BASED = (b"cubic", b"reno")  # congestion controls; BBR goes by what arrives

_INFO = struct.Struct("=68x I 4x 2I 16x I 3Q 16x 2I 16x 3Q")  # of struct tcp_info, linux/tcp.h: those that TcpInfo has


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """The fields of the kernel's TCP_INFO that are used here; times in seconds."""

    at: float
    busy: float  # total time with something to send or unacknowledged
    receiver_limited: float  # of that, the time in which the receiver's window was full
    buffer_limited: float  # of that, the time in which the send buffer was too small
    rtt: float
    least_rtt: float  # the shortest of the last minutes
    lost: int  # packets, so far
    arrived: int  # bytes, so far
    is_held_back: bool  # whether earlier losses limit it, with more to send
    is_paced: bool = False  # whether our pacing limits it (pacing.py)


def tcp_info(connection: socket.socket) -> TcpInfo | None:
    """The connection's TCP_INFO now; None if the system does not provide it."""
    if sys.platform != "linux":
        return None
    try:
        data = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        control = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).partition(b"\0")[0]
    except OSError:
        return None
    if len(data) < _INFO.size:  # Linux before 4.10
        return None
    rtt, threshold, window, lost, pace, most, arrived, unsent, least_rtt, *limited = _INFO.unpack(data)
    busy, receiver_limited, buffer_limited = (each / 1e6 for each in limited)
    is_held_back = control in LOSS_BASED and window >= threshold and unsent > 0
    return TcpInfo(
        time.monotonic(),
        busy,
        receiver_limited,
        buffer_limited,
        rtt / 1e6,
        least_rtt / 1e6,
        lost,
        arrived,
        is_held_back,
        is_paced=most <= pace < NO_PACING,
    )


class PathRtt:
    """The shortest round trip that the connections to one peer have seen."""

    def __init__(self) -> None:
        self.least_rtt = math.inf

    def has_no_queue(self, now: TcpInfo) -> bool:
        """Whether the round trip is hardly longer than the shortest."""
        self.least_rtt = min(self.least_rtt, now.least_rtt)
        return now.rtt - self.least_rtt < min(QUEUE[0] * self.least_rtt, QUEUE[1])


class SpareCapacity:
    """Judges one connection by its TCP_INFO while it is written to."""

    def __init__(self, path: PathRtt) -> None:
        self.has_room = False
        """Whether the path had room for another connection in the last whole window."""
        self._path = path
        self._last: TcpInfo | None = None
        self._lost_at = -math.inf  # the last loss, in `busy` time
        self._begin()

    def judge_anew(self) -> None:
        """Forget the verdict, as there is another connection now."""
        self.has_room, self._last = False, None

    def see(self, now: TcpInfo) -> None:
        """Take in one look."""
        last = self._last
        if last is not None and now.at - last.at < APART:
            return
        self._last = now
        if last is None or now.busy - last.busy < BUSY * (now.at - last.at):
            self._begin()
            return
        self._note(last, now)
        if self._whole >= WINDOW and self._looks >= LOOKS:
            self.has_room = max(self._lossy, self._small) >= MOSTLY * self._whole
            self._begin()

    def _begin(self) -> None:
        self._looks, self._whole = 0, 0.0
        self._lossy = self._small = 0.0  # seconds held back by losses, and by a small buffer

    def _note(self, last: TcpInfo, now: TcpInfo) -> None:
        busy = now.busy - last.busy
        self._looks, self._whole = self._looks + 1, self._whole + busy
        if now.lost > last.lost:
            self._lost_at = now.busy
        if now.is_paced or now.least_rtt < FAR or not self._path.has_no_queue(now):
            return
        self._small += now.buffer_limited - last.buffer_limited
        if now.is_held_back and now.busy - self._lost_at < LOST_WITHIN:
            self._lossy += busy - (now.receiver_limited - last.receiver_limited)
