"""Decides when to ping a link and when to give its peer up, and reads the peer's clock from pongs. Pure.

An idle link costs next to nothing.

Rules:
- A link in use is pinged every OFTEN seconds, so that its round trip is known and a silent peer is noticed soon.
- On an idle link one of the two ends sends something every QUIET seconds, so that no router on the way forgets it; and
  each end pings every MEASURE seconds, as only its own pings measure the round trip.
- After a change of the path the first pong measures nothing: the peer may hold our ping back until the old stream has
  ended (streams.py). The next ping follows soon.
- An unanswered ping is repeated every OFTEN seconds, and after a while the peer is given up. Only a pong ends that:
  other messages of the peer do not prove that it receives ours.
- A link in use is given up after SILENCE: payloads may delay a pong, a machine in a round may be busy, and losing the
  link would cost that round. An idle one is given up after SILENCE_AT_REST, which is three repeats: nothing delays a
  pong, the loss was noticed late already, and a new link costs a few messages. So a relay that vanished is noticed
  within 50 s.
- So is one whose peer a run has given up, as others cannot reach it either. When the network is whole again TCP would
  send nothing on the old connections for as long as it was cut, as it tries after twice as long each time; new ones
  work at once.
- A pong carries the peer's clock in milliseconds. Earlier versions send none; other lengths or values count as none.
"""

from __future__ import annotations

import math

SIZE = 8  # bytes: milliseconds since 1970
LATEST = 1 << 46  # in the year 4199
OFTEN, QUIET, MEASURE = 5.0, 25.0, 100.0  # seconds between pings in use, between any messages and between pings at rest
TALK = 8  # messages, in both directions, since the last ping, from which on a link is in use
SILENCE, SILENCE_AT_REST = 30.0, 15.0  # seconds


def clock_for_pong(clock: float) -> bytes:
    """The body of a pong: a clock, given in seconds since 1970, as milliseconds."""
    return max(0, int(1000 * clock)).to_bytes(SIZE, "big")


def clock_ahead(clock: float, rtt: float, body: bytes | memoryview) -> float | None:
    """How many seconds our clock is ahead of the sender's of a pong that came just now; None if it carries no clock."""
    theirs = int.from_bytes(body, "big") if len(body) == SIZE else LATEST
    return clock - rtt / 2 - theirs / 1000 if theirs < LATEST else None


class Heartbeat:
    """The heartbeat of one link."""

    def __init__(self) -> None:
        self._number = self._messages = 0
        self._pinged_at = self._heard_at = -math.inf
        self._unanswered_since: float | None = None
        self._is_settled = True  # whether a pong has come since the path last changed
        self._patience = SILENCE  # seconds for which the present silence is tolerated
        self._is_doubted = False

    @property
    def complaint(self) -> str:
        """Why a silent peer is given up."""
        return f"it has not answered a ping for {self._patience:g} s"

    def begin(self, now: float) -> None:
        """A connection was made."""
        self._pinged_at, self._messages, self._is_settled, self._is_doubted = -math.inf, 0, True, False
        self.forgive(now)

    def settle(self) -> None:
        """The path has changed."""
        self._is_settled = False

    def forgive(self, now: float) -> None:
        """Forget the peer's silence, as it was we who did not listen."""
        self._heard_at = now
        self._unanswered_since = None

    def doubt(self) -> None:
        """Others say that the peer is gone."""
        self._is_doubted, self._patience = True, SILENCE_AT_REST

    def said(self) -> None:
        """We send something other than a ping."""
        self._messages += 1

    def heard(self, now: float) -> None:
        """Something was received."""
        self._heard_at = now
        self._messages += 1

    def is_due(self, now: float) -> bool:
        """Whether to ping now."""
        since = now - self._pinged_at
        if since < OFTEN:
            return False
        is_in_use = self._messages >= TALK or self._unanswered_since is not None
        return is_in_use or since >= MEASURE or now - self._heard_at >= QUIET

    def is_silent(self, now: float) -> bool:
        """Whether the peer has left our pings unanswered for too long."""
        return self._unanswered_since is not None and now - self._unanswered_since > self._patience

    def ping(self, now: float) -> int:
        """We ping now; returns the number of the ping."""
        self._number += 1
        if self._unanswered_since is None:
            self._unanswered_since, self._patience = now, SILENCE_AT_REST
        if self._messages >= TALK and not self._is_doubted:
            self._patience = SILENCE
        self._pinged_at, self._messages = now, 0
        return self._number

    def answered(self, now: float, number: int) -> float | None:
        """A pong has come; returns the round trip in seconds if it answers the last ping."""
        self._unanswered_since, self._is_doubted = None, False
        if number != self._number:
            return None
        if not self._is_settled:
            self._is_settled, self._pinged_at = True, -math.inf
            return None
        return now - self._pinged_at
