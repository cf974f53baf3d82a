"""Counters of a run on this node since the daemon joined it, for `/metrics`. They only grow.

Each event is counted where it happens, and nowhere else. `Outgoing` counts the payloads of all-reduces that leave this
node.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass

from shoal.node.api.answers import RunCounters
from shoal.node.base.fault_injection import FaultTrigger
from shoal.node.run.records import CommitLog
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.rounds import Contribution, Fetched, Final
from shoal.protocol.messages.transfer import StateChunk
from shoal.protocol.rounds.attempt import Attempt
from shoal.protocol.rounds.matchmaking.failure import Kind

BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)  # seconds of a round, at most


@dataclass(slots=True)
class Tally:
    """What a node counts over all its runs, also those that it has left."""

    rounds: int = 0  # committed rounds that we took part in


class Meters:
    """The counters of one run; `tally` is the node's."""

    def __init__(self, tally: Tally | None = None) -> None:
        self._tally = tally or Tally()
        self._samples = 0  # tokens behind the rounds that were committed here
        self._failures = Counter({kind.value: 0 for kind in Kind})  # failed attempts, by reason
        self._rounds = [0] * (len(BOUNDS) + 1)  # committed rounds that we took part in, by duration
        self._seconds = 0.0  # of all these rounds
        self._exchanges: Counter[str] = Counter()  # rounds of a replica: exchanges, and lapses by their reasons
        self._sync_sent = self._sync_received = 0  # bytes of state, to joiners and from donors

    def committed(self, samples: int, seconds: float, *, took_part: bool) -> None:
        """A round was applied, `seconds` after we were ready for it; we may not have taken part."""
        self._samples += samples
        if took_part:
            self._tally.rounds += 1
            self._rounds[bisect_left(BOUNDS, seconds)] += 1
            self._seconds += seconds

    def exchanged(self, lapse: str, *, is_mutual: bool) -> None:
        """A round of our replica is over: with an exchange, or without, for the reason `lapse`."""
        self._exchanges[lapse or ("mutual" if is_mutual else "one-sided")] += 1

    def failed(self, kind: Kind) -> None:
        """An attempt has failed."""
        self._failures[kind.value] += 1

    def sent(self, message: Message) -> None:
        """A payload was written to the network."""
        if isinstance(message, StateChunk):
            self._sync_sent += len(message.payload)

    def received(self, message: Message) -> None:
        """A message has arrived."""
        if isinstance(message, StateChunk):
            self._sync_received += len(message.payload)

    @property
    def exchanges(self) -> dict[str, int]:
        """Rounds of our replica: "mutual" and "one-sided" exchanges, and lapses by their reasons."""
        return dict(self._exchanges)

    def as_json(self) -> RunCounters:
        """All of them; `durations` are counts of rounds, each with its upper bound, None for the last."""
        return {
            "samples": self._samples,
            "failures": dict(self._failures),
            "durations": [list(pair) for pair in zip((*BOUNDS, None), self._rounds, strict=True)],
            "seconds": self._seconds,
            "exchanges": self.exchanges,
            "sync": {"sent": self._sync_sent, "received": self._sync_received},
        }


# -- outgoing payloads ---------------------------------------------------------------------------------------------


class Outgoing:
    """Counts payloads as they are written to the network."""

    def __init__(self, me: PeerId, commits: CommitLog, fault: FaultTrigger | None) -> None:
        self.resent = 0  # bytes of chunks that had been contributed before in the same attempt
        self._me = me
        self._commits = commits
        self._fault = fault
        self._attempt = (0, 0)
        self._chunks: set[int] = set()

    def sent(self, message: Message, attempt: Attempt | None, exchanged: int = 0) -> None:
        """A payload was written to the network, while we were in `attempt`.

        `exchanged` is how many chunks two replicas give each other; in such a run there is no attempt.
        """
        match message:
            case Contribution():
                self._commits.sent(message.round, len(message.payload))
                self._contributed(message, attempt, exchanged)
            case Final():
                self._commits.sent(message.round, len(message.payload))
            case Fetched() if attempt is not None and message.round == attempt.plan.round:
                self._commits.sent(message.round, len(message.payload))  # for other rounds, a peer is catching up

    def _contributed(self, message: Contribution, attempt: Attempt | None, exchanged: int) -> None:
        if self._attempt != (message.round, message.attempt):
            self._attempt, self.resent = (message.round, message.attempt), 0
            self._chunks.clear()
        if message.chunk in self._chunks:
            self.resent += len(message.payload)
        self._chunks.add(message.chunk)
        if self._fault is not None and exchanged:
            self._fault.sent(message.round, len(self._chunks), exchanged, "any")
        elif self._fault is not None and attempt is not None and attempt.number == message.attempt:
            total = sum(owner != self._me for owner in attempt.plan.owners)
            role = self._fault.fault.role
            if role in self._roles(attempt):
                self._fault.sent(message.round, len(self._chunks), total, role)

    def _roles(self, attempt: Attempt) -> list[str]:
        """Our roles in a group; a leader may be an owner, too."""
        work = "owner" if attempt.owns_any() else "contributor"
        return ["any", work, "leader"] if attempt.plan.leader == self._me else ["any", work]
