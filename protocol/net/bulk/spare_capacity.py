"""Whether one connection fills its path, by what the system says of it; pure, but for `look`.

Where packets are lost though no queue stands (a noisy line, an ocean cable), TCP that takes each loss for a full
queue sends ever less than would go: some MSS / (RTT x sqrt(loss)) (Mathis et al. 1997), for each connection. There two
of them carry twice as much. Where the line is full, they only take from each other.

A path has room for more than this connection if, for most of a window in which it always had something to send, no
queue stood (the round trip was hardly longer than the least that this path has shown), and
- it was held back by losses: it takes them for queues, is beyond its slow-start threshold (RFC 5681), had some not long
  ago, and had more to send than the network took, and the receiver let it;
- or it was held back by its send buffer: the path holds more than the system allows one connection.

What is near needs no second connection: there a processor is what ends first. Linux alone says all this. What it cannot
tell from a path with room is a policer, or a queue that is kept as short as this (CoDel): there a second connection
gains nothing for the line, and a larger part of it for us.
"""

from __future__ import annotations

import math
import socket
import struct
import sys
import time
from dataclasses import dataclass

WINDOW = 2.0  # seconds with something to send
LOOKS = 5  # in a window
APART = 0.05  # seconds between two looks: the system counts in steps of up to 10 ms
BUSY = 0.8  # of the time between two looks: else it had nothing to send, or waited for us
MOSTLY = 0.75  # of the window
QUEUE = (0.25, 0.015)  # of the least round trip, and seconds: more than one of these beyond it, and a queue stands
FAR = 0.005  # seconds of round trip
LOST_WITHIN = 10.0  # seconds with something to send
NEVER = 1 << 63  # bytes a second: what pacing rates are that nobody has set
LOSS_BASED = (b"cubic", b"reno")  # of congestion controls, those that most systems have; BBR goes by what arrives

_INFO = struct.Struct("=68x I 4x 2I 16x I 3Q 16x 2I 16x 3Q")  # of struct tcp_info, linux/tcp.h: those that TcpInfo has


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """What the system says of a connection; times in seconds."""

    at: float
    busy: float  # so far, with something to send or to be acknowledged
    receiver_limited: float  # of those, as long as the receiver's window was full
    buffer_limited: float  # of those, as long as the send buffer was too small
    rtt: float
    least_rtt: float  # of the last minutes
    lost: int  # packets, so far
    arrived: int  # bytes, so far
    is_held_back: bool  # by earlier losses, with more to send
    is_paced: bool = False  # by us, more slowly than it would go (pacing.py)


def tcp_info(connection: socket.socket) -> TcpInfo | None:
    """A look at it now; None where the system does not say."""
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
        is_paced=most <= pace < NEVER,
    )


class PathRtt:
    """What all connections to one peer have seen of the way there."""

    def __init__(self) -> None:
        self.least_rtt = math.inf

    def has_no_queue(self, now: TcpInfo) -> bool:
        """Whether a round trip is hardly longer than the least."""
        self.least_rtt = min(self.least_rtt, now.least_rtt)
        return now.rtt - self.least_rtt < min(QUEUE[0] * self.least_rtt, QUEUE[1])


class SpareCapacity:
    """Of one connection, by looks at it while it is written to."""

    def __init__(self, path: PathRtt) -> None:
        self.has_room = False
        """For more than this connection, by the last whole window."""
        self._path = path
        self._last: TcpInfo | None = None
        self._lost_at = -math.inf  # by `busy`
        self._begin()

    def judge_anew(self) -> None:
        """There is another connection now."""
        self.has_room, self._last = False, None

    def see(self, now: TcpInfo) -> None:
        """One more."""
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
        self._lossy = self._small = 0.0  # seconds: held back by losses, and by a small buffer

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
