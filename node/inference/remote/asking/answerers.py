"""The peers that answer for one expert: which one to ask, how long to wait, and which ones not to ask for a while.

Rules:
- A call's usual time is learned, of each peer, by what was asked: a token of each text, or so many tokens of prompts.
  If an answer is later than that, another peer is asked as well (a hedge), in at most one call of ten, so that a moment
  in which all are slow is not made worse. A peer that takes PATIENCE times as long, or longer than the owner's limit,
  has failed.
- Connecting with a peer that has failed recently is tried for LEAST seconds only, so that a text does not wait for it.
- A peer that fails is not asked for a while, twice as long each time; one that has sent what no honest peer sends, for
  LIED seconds, also if it withdraws its offer and makes it again. A new text goes to the peer that is usually quickest;
  one that has begun stays where it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from shoal.protocol.base.errors import RemoteError, ShoalError
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import PeerId

READ = 128  # tokens of prompts, for which the time is learned
SOON, PATIENCE, LEAST = 0.25, 8.0, 2.0  # seconds until the first hedge; times the usual; seconds until a failure
REST = (1.0, 60.0)  # the first and the longest
LIED = 600.0
UNKNOWN = 4.0  # of who was never asked this part of the owner's limit is the usual time
EARNED, MOST_HEDGES = 0.1, 4.0
REMEMBERED = 256  # peers that do not answer now


def _estimate(limit: float) -> Estimate:
    return Estimate(initial=limit / UNKNOWN, floor=min(SOON, limit), ceiling=limit)


class Lie(RemoteError):
    """An answer that no honest peer gives."""


@dataclass(slots=True, eq=False)
class Answerer:
    """A peer that answers. `limit`: seconds that a call may take at most."""

    peer: PeerId
    limit: float
    writing: Estimate = field(init=False)
    reading: Estimate = field(init=False)
    rests_until: float = 0.0
    failures: int = 0  # one after the other
    problem: str = ""  # what the last one was

    def __post_init__(self) -> None:
        self.writing, self.reading = _estimate(self.limit), _estimate(self.limit)

    def usual(self, tokens: int) -> float:
        """Seconds after which an answer is late; `tokens` are those of prompts that are to be read."""
        parts = -(-tokens // READ)
        return min(self.limit, self.reading.deadline() * parts if parts else self.writing.deadline())

    def deadline(self, tokens: int) -> float:
        """Seconds after which it has failed."""
        return min(self.limit, max(LEAST, PATIENCE * self.usual(tokens)))

    @property
    def meeting_deadline(self) -> float:
        """Seconds that a connection with it may take."""
        return min(self.limit, LEAST) if self.failures else self.limit

    def answered(self, tokens: int, seconds: float) -> None:
        """An answer has come."""
        parts = -(-tokens // READ)
        (self.reading if parts else self.writing).observe(seconds / max(1, parts))

    def outrun(self, tokens: int, seconds: float) -> None:
        """No answer has come in so many seconds, and none is waited for; that says something if it is late by now."""
        if seconds >= self.usual(tokens):
            self.answered(tokens, seconds)

    def works(self) -> None:
        """It has answered as it should."""
        self.failures, self.problem = 0, ""

    def failed(self, now: float, error: ShoalError) -> None:
        """It has not."""
        first, longest = REST
        rest = LIED if isinstance(error, Lie) else min(longest, first * 2**self.failures)
        self.failures = min(self.failures + 1, 16)
        self.rests_until, self.problem = now + rest, str(error)


class Answerers:
    """Of one expert."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._known: dict[PeerId, Answerer] = {}
        self._away: dict[PeerId, Answerer] = {}  # the longest away first
        self._hedges = MOST_HEDGES

    def update(self, peers: Iterable[PeerId]) -> None:
        """Who answers now; what was learned of those that stay, or are back, is kept."""
        before = self._away | self._known
        self._known = {peer: before.get(peer) or Answerer(peer, self._limit) for peer in peers}
        away = [(peer, each) for peer, each in before.items() if peer not in self._known]
        self._away = dict(away[-REMEMBERED:])

    def all(self) -> list[Answerer]:
        """Those that may be asked at some time."""
        return list(self._known.values())

    def best(self, now: float, but: Collection[Answerer] = ()) -> Answerer | None:
        """The one to be asked first; None if all of them rest."""
        able = [each for each in self._known.values() if each.rests_until <= now and each not in but]
        return min(able, key=lambda each: (each.failures, each.writing.mean), default=None)

    def is_able(self, now: float, answerer: Answerer) -> bool:
        """Whether it may be asked now about a text that it has read, also if nobody says any more that it answers."""
        return answerer.rests_until <= now

    def called(self) -> None:
        """A call has begun: a tenth of a hedge is earned."""
        self._hedges = min(MOST_HEDGES, self._hedges + EARNED)

    def may_hedge(self) -> bool:
        """Whether another peer may be asked as well; it counts as done."""
        if self._hedges < 1.0:
            return False
        self._hedges -= 1.0
        return True
