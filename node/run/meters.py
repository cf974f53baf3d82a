"""Counters of a run on this node since the daemon joined it, for `/metrics`. They only grow.

Each event is counted where it happens, and nowhere else. `Outgoing` counts the payloads of all-reduces that leave this
node.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass

from shoal.node.api.answers import RunCounters
from shoal.node.run.records import CommitLog
from shoal.protocol.averaging.rounds import Rounds
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.averaging import Contribution, Mean
from shoal.protocol.messages.replicas import Chunk
from shoal.protocol.messages.transfer import StateChunk

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
        self._voided = 0  # rounds whose result was undone
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

    def voided(self) -> None:
        """A round's result was undone."""
        self._voided += 1

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
            "failures": {"voided": self._voided},
            "durations": [list(pair) for pair in zip((*BOUNDS, None), self._rounds, strict=True)],
            "seconds": self._seconds,
            "exchanges": self.exchanges,
            "sync": {"sent": self._sync_sent, "received": self._sync_received},
        }


# -- outgoing payloads ---------------------------------------------------------------------------------------------


class Outgoing:
    """Counts payloads as they are written to the network."""

    def __init__(self, commits: CommitLog) -> None:
        self.resent = 0  # bytes of chunks that had been contributed before in the same round
        self._commits = commits
        self._round = (0, 0)  # and, of a replica, the number of the pairing
        self._chunks: set[int] = set()

    def sent(self, to: PeerId, message: Message, rounds: Rounds) -> None:
        """A payload was written to the network."""
        match message:
            case Contribution():
                self._contributed(message.round, 0, message.chunk, len(message.payload))
            case Chunk():
                self._contributed(message.round, message.number, message.chunk, len(message.payload))
            case Mean() if to in rounds.roster(message.round):  # whoever was not there catches up
                self._commits.sent(message.round, len(message.payload))

    def _contributed(self, round: int, number: int, chunk: int, size: int) -> None:
        self._commits.sent(round, size)
        if self._round != (round, number):
            self._round, self.resent = (round, number), 0
            self._chunks.clear()
        if chunk in self._chunks:
            self.resent += size
        self._chunks.add(chunk)
