"""What this node remembers of committed rounds, for people and for `shoal up`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

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
    bytes: int  # that we sent for it
    resent: int  # bytes of contributions that we sent a second time, because an owner was lost

    def as_json(self) -> dict[str, Any]:
        """For the API."""
        return asdict(self)


class CommitLog:
    """The committed rounds, oldest first."""

    def __init__(self) -> None:
        self.records: list[CommitRecord] = []
        self.group = 0  # members of the last round
        self._submitted_at: float | None = None
        self._sent = 0

    def submitted(self, now: float) -> None:
        """We are ready for the current round."""
        if self._submitted_at is None:
            self._submitted_at = now

    def add(self, decision: Decision, me: PeerId, now: float, sent: int, resent: int) -> CommitRecord:
        """A round is applied; `sent` is what we have sent for the run so far, in bytes."""
        proposal = decision.certificate.proposal
        record = CommitRecord(
            proposal.round,
            proposal.attempt,
            len(proposal.members),
            len(counted_everywhere(decision.chunks, len(proposal.members))),
            next_history(proposal).hex(),
            me in proposal.members,
            0.0 if self._submitted_at is None else now - self._submitted_at,
            sent - self._sent,
            resent,
        )
        self._submitted_at, self._sent, self.group = None, sent, len(proposal.members)
        self.records = [*self.records[-KEPT + 1 :], record]
        return record
