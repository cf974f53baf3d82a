"""The peers that answer for one expert: which to ask, how long to wait, and which to avoid for a while.

Rules:
- The usual time of a call is learned for each peer, separately for one token of each text, and for tokens of prompts.
  If an answer takes longer another peer is asked as well (a hedge), in at most one call of ten, so that a moment in
  which all peers are slow is not made worse. A peer that takes PATIENCE times as long, or longer than the user's limit,
  has failed.
- With a peer that has failed recently, a connection is tried for LEAST seconds only, so that a text does not wait.
- A peer that fails is avoided for a while, twice as long each time; one that has sent what no honest peer sends is
  avoided for LIED seconds, even if it withdraws its offer and makes it again. A new text goes to the peer that is
  usually quickest; a text that has begun stays with its peer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from shoal.protocol.base.errors import RemoteError, ShoalError
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import PeerId

READ = 128  # tokens of prompts: the time for so many is learned
SOON, PATIENCE, LEAST = 0.25, 8.0, 2.0  # seconds until the first hedge; times the usual; seconds until a failure
REST = (1.0, 60.0)  # seconds for which a peer is avoided after its first failure, and at most
LIED = 600.0
UNKNOWN = 4.0  # before a peer was asked, its usual time is the user's limit divided by this
EARNED, MOST_HEDGES = 0.1, 4.0  # hedges that a call earns, and that may be saved
REMEMBERED = 256  # peers that no longer answer, of which what was learned is kept


def _estimate(limit: float) -> Estimate:
    return Estimate(initial=limit / UNKNOWN, floor=min(SOON, limit), ceiling=limit)


class Lie(RemoteError):
    """An answer that no honest peer gives."""


@dataclass(slots=True, eq=False)
class Answerer:
    """A peer that answers for the expert. `limit`: the most seconds that a call may take."""

    peer: PeerId
    limit: float
    writing: Estimate = field(init=False)
    reading: Estimate = field(init=False)
    rests_until: float = 0.0
    failures: int = 0  # in a row
    problem: str = ""  # the last failure

    def __post_init__(self) -> None:
        self.writing, self.reading = _estimate(self.limit), _estimate(self.limit)

    def usual(self, tokens: int) -> float:
        """Seconds after which an answer is late; `tokens` is how many tokens of prompts are to be read."""
        parts = -(-tokens // READ)
        return min(self.limit, self.reading.deadline() * parts if parts else self.writing.deadline())

    def deadline(self, tokens: int) -> float:
        """Seconds after which the call has failed."""
        return min(self.limit, max(LEAST, PATIENCE * self.usual(tokens)))

    @property
    def meeting_deadline(self) -> float:
        """Seconds that connecting with it may take."""
        return min(self.limit, LEAST) if self.failures else self.limit

    def answered(self, tokens: int, seconds: float) -> None:
        """Learn from the time of an answer."""
        parts = -(-tokens // READ)
        (self.reading if parts else self.writing).observe(seconds / max(1, parts))

    def outrun(self, tokens: int, seconds: float) -> None:
        """The call was dropped after `seconds` without an answer; if it was late by then, its time is learned from."""
        if seconds >= self.usual(tokens):
            self.answered(tokens, seconds)

    def works(self) -> None:
        """Note a correct answer."""
        self.failures, self.problem = 0, ""

    def failed(self, now: float, error: ShoalError) -> None:
        """Note a failure, and avoid the peer for a while."""
        first, longest = REST
        rest = LIED if isinstance(error, Lie) else min(longest, first * 2**self.failures)
        self.failures = min(self.failures + 1, 16)
        self.rests_until, self.problem = now + rest, str(error)


class Answerers:
    """All peers that answer for one expert."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._known: dict[PeerId, Answerer] = {}
        self._away: dict[PeerId, Answerer] = {}  # those that left first, first
        self._hedges = MOST_HEDGES

    def update(self, peers: Iterable[PeerId]) -> None:
        """Set the peers that answer now; what was learned of those that stay, or come back, is kept."""
        before = self._away | self._known
        self._known = {peer: before.get(peer) or Answerer(peer, self._limit) for peer in peers}
        away = [(peer, each) for peer, each in before.items() if peer not in self._known]
        self._away = dict(away[-REMEMBERED:])

    def all(self) -> list[Answerer]:
        """The peers that answer, avoided ones included."""
        return list(self._known.values())

    def best(self, now: float, but: Collection[Answerer] = ()) -> Answerer | None:
        """The peer to ask first; None if all are avoided, or in `but`."""
        able = [each for each in self._known.values() if each.rests_until <= now and each not in but]
        return min(able, key=lambda each: (each.failures, each.writing.mean), default=None)

    def is_able(self, now: float, answerer: Answerer) -> bool:
        """Whether it may be asked now about a text that it has read, even if it no longer offers to answer."""
        return answerer.rests_until <= now

    def called(self) -> None:
        """A call has begun: it earns a tenth of a hedge."""
        self._hedges = min(MOST_HEDGES, self._hedges + EARNED)

    def may_hedge(self) -> bool:
        """Whether another peer may be asked as well; if so, this counts as a hedge."""
        if self._hedges < 1.0:
            return False
        self._hedges -= 1.0
        return True
