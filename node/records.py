"""What this node remembers of committed rounds, for people and for `shoal up`."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from shoal.node.waits import Waits
from shoal.protocol.certificate import counted_everywhere, next_history
from shoal.protocol.ids import PeerId
from shoal.protocol.shelf import Decision

KEPT = 10_000


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """One committed round, as this member saw it."""

    round: int
    attempt: int
    members: int
    contributors: int  # members counted in every chunk
    digest: str  # history
    took_part: bool  # we are in its roster; otherwise we only followed
    seconds: float  # from our own readiness to the applied result
    resent: int  # bytes of contributions that we sent a second time, because an owner was lost
    at: float  # when it was applied here, in seconds since 1970
    samples: int  # tokens behind it, of all members
    waited_for: dict[PeerId, float]  # seconds for which each late member was waited for, the latest first
    called: bool  # whether the others waited for us


class CommitLog:
    """The committed rounds, oldest first, and what they cost."""

    def __init__(self) -> None:
        self.records: list[CommitRecord] = []
        self.group = 0  # members of the last round
        self.waits = Waits()  # of the current round
        self._submitted_at: float | None = None
        self._sent: Counter[int] = Counter()  # bytes of payload, by round

    def submitted(self, now: float) -> None:
        """We are ready for the current round."""
        if self._submitted_at is None:
            self._submitted_at = now

    def sent(self, round: int, size: int) -> None:
        """So many bytes of payload have left for a round's all-reduce; some leave after it has committed."""
        self._sent[round] += size

    def add(self, decision: Decision, me: PeerId, now: float, resent: int) -> CommitRecord:
        """A round is applied."""
        proposal = decision.certificate.proposal
        record = CommitRecord(
            proposal.round,
            proposal.attempt,
            len(proposal.members),
            len(counted_everywhere(decision.chunks, len(proposal.members))),
            next_history(proposal).hex(),
            me in proposal.members,
            0.0 if self._submitted_at is None else now - self._submitted_at,
            resent,
            time.time(),
            proposal.samples,
            self.waits.longest(),
            self.waits.called,
        )
        self._submitted_at, self.group, self.waits = None, len(proposal.members), Waits()
        self.records.append(record)
        if len(self.records) > KEPT:
            self._sent.pop(self.records.pop(0).round, None)
        return record

    def as_json(self, last: int | None = None) -> list[dict[str, Any]]:
        """All records, or the `last` ones, for the API, each with the bytes that we have sent for it so far."""
        first = 0 if last is None else max(0, len(self.records) - last)
        return [{**asdict(record), "bytes": self._sent[record.round]} for record in self.records[first:]]
