"""What has happened in a run on this node since the daemon joined it: counters that only grow, for `/metrics`.

Each is counted where the thing happens, and nowhere twice. Plain numbers: who shows them brings the format.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Any

from shoal.protocol.failure import Kind
from shoal.protocol.messages.transfer import StateChunk
from shoal.protocol.wire import Message

BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)  # seconds of a round, at most


class Meters:
    """The counters of one run."""

    def __init__(self) -> None:
        self._samples = 0  # tokens behind the rounds that were committed here
        self._failures = Counter({kind.value: 0 for kind in Kind})  # attempts, by why they failed
        self._rounds = [0] * (len(BOUNDS) + 1)  # committed rounds that we took part in, by how long they took
        self._seconds = 0.0  # of all of them
        self._exchanges: Counter[str] = Counter()  # rounds of a replica: exchanges, and lapses by their reasons
        self._sync_sent = self._sync_received = 0  # bytes of state, to joiners and from donors

    def committed(self, samples: int, seconds: float, *, took_part: bool) -> None:
        """A round is applied, `seconds` after we were ready for it; it may have gone on without us."""
        self._samples += samples
        if took_part:
            self._rounds[bisect_left(BOUNDS, seconds)] += 1
            self._seconds += seconds

    def exchanged(self, lapse: str, *, is_mutual: bool) -> None:
        """A round of our replica is over, with an exchange or, with the reason `lapse`, without."""
        self._exchanges[lapse or ("mutual" if is_mutual else "one-sided")] += 1

    def failed(self, kind: Kind) -> None:
        """An attempt came to nothing."""
        self._failures[kind.value] += 1

    def sent(self, message: Message) -> None:
        """A bulk message was written to its stream."""
        if isinstance(message, StateChunk):
            self._sync_sent += len(message.payload)

    def received(self, message: Message) -> None:
        """Any message has come."""
        if isinstance(message, StateChunk):
            self._sync_received += len(message.payload)

    @property
    def exchanges(self) -> dict[str, int]:
        """Rounds of our replica: "mutual" and "one-sided" exchanges, and lapses by their reasons."""
        return dict(self._exchanges)

    def as_json(self) -> dict[str, Any]:
        """All of them; `durations` are counts of rounds, each with its upper bound, None for the last."""
        return {
            "samples": self._samples,
            "failures": dict(self._failures),
            "durations": [list(pair) for pair in zip((*BOUNDS, None), self._rounds, strict=True)],
            "seconds": self._seconds,
            "exchanges": self.exchanges,
            "sync": {"sent": self._sync_sent, "received": self._sync_received},
        }
