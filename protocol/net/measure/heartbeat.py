"""When a link is pinged, when its peer is given up, and what an answer says of the peer's clock. Pure.

A link at rest costs next to nothing.

Rules:
- A link in use is pinged every OFTEN seconds: its round trip is known, and a silent peer is found out soon.
- Over one at rest somebody says something every QUIET seconds, either end, so that no router on the way forgets it; and
  each end pings itself now and then, as only that measures.
- Where the way changes, the first answer measures nothing: the peer may hold our ping back until what goes the old way
  has ended (streams.py). The next ping follows soon.
- A ping without an answer is repeated every OFTEN seconds, and after a while the peer is given up. Only an answer to a
  ping clears it: that the peer is heard does not prove that it hears us.
- In use, a link has SILENCE: payloads may stand before an answer, a machine in a round may be busy, and to lose the
  link would cost that round. At rest nothing stands before it, the loss was noticed late already, and a new link costs
  a few messages: SILENCE_AT_REST, three repeats. So a relay that vanished is missed within 50 s.
- An answer carries the milliseconds of the peer's clock. An earlier version sends none; other lengths or values count
  as none.
"""

from __future__ import annotations

import math

SIZE = 8  # bytes: milliseconds since 1970
LATEST = 1 << 46  # in the year 4199
OFTEN, QUIET, MEASURE = 5.0, 25.0, 100.0  # seconds
TALK = 8  # words, both ways, since the last ping: the link is not at rest
SILENCE, SILENCE_AT_REST = 30.0, 15.0  # seconds


def clock_for_pong(clock: float) -> bytes:
    """What a clock shows, in seconds since 1970, for a pong."""
    return max(0, int(1000 * clock)).to_bytes(SIZE, "big")


def clock_ahead(clock: float, rtt: float, body: bytes | memoryview) -> float | None:
    """By how many seconds ours is ahead of theirs, if that is what a pong says which has just come, after `rtt`."""
    theirs = int.from_bytes(body, "big") if len(body) == SIZE else LATEST
    return clock - rtt / 2 - theirs / 1000 if theirs < LATEST else None


class Heartbeat:
    """Of one link."""

    def __init__(self) -> None:
        self.round_trip: float | None = None  # the last, in seconds
        self._number = self._words = 0
        self._pinged_at = self._heard_at = -math.inf
        self._unanswered_since: float | None = None
        self._is_settled = True  # the way is the one that it was at the last answer
        self._patience = SILENCE  # with the ping that is unanswered

    @property
    def complaint(self) -> str:
        """Why a silent peer is given up."""
        return f"it has not answered a ping for {self._patience:g} s"

    def begin(self, now: float) -> None:
        """There is a connection, and not a word yet."""
        self.round_trip, self._pinged_at, self._words, self._is_settled = None, -math.inf, 0, True
        self.forgive(now)

    def settle(self) -> None:
        """The way is another now."""
        self.round_trip, self._is_settled = None, False

    def forgive(self, now: float) -> None:
        """Start the silence anew: it was we who did not listen."""
        self._heard_at = now
        self._unanswered_since = None

    def said(self) -> None:
        """A word of ours goes out that is no ping."""
        self._words += 1

    def heard(self, now: float) -> None:
        """Anything came in."""
        self._heard_at = now
        self._words += 1

    def is_due(self, now: float) -> bool:
        """Whether to ping now."""
        since = now - self._pinged_at
        if since < OFTEN:
            return False
        is_in_use = self._words >= TALK or self._unanswered_since is not None
        return is_in_use or since >= MEASURE or now - self._heard_at >= QUIET

    def is_silent(self, now: float) -> bool:
        """Whether the peer has left our pings unanswered for too long."""
        return self._unanswered_since is not None and now - self._unanswered_since > self._patience

    def ping(self, now: float) -> int:
        """We ping now; the number of the ping."""
        self._number += 1
        if self._unanswered_since is None:
            self._unanswered_since, self._patience = now, SILENCE_AT_REST
        if self._words >= TALK:
            self._patience = SILENCE
        self._pinged_at, self._words = now, 0
        return self._number

    def answered(self, now: float, number: int) -> float | None:
        """A ping of ours came back; how long it took, if it is the last one."""
        self._unanswered_since = None
        if number != self._number:
            return None
        if not self._is_settled:
            self._is_settled, self._pinged_at = True, -math.inf
            return None
        self.round_trip = now - self._pinged_at
        return self.round_trip
