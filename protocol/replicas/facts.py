"""What the members of a run of replicas know of it before they have met anybody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shoal.protocol.averaging.policy import Policy
from shoal.protocol.base.ids import Digest
from shoal.protocol.base.wire import MAX_INT, Payload
from shoal.protocol.member.facts import RunFacts

WINDOW = 8  # rounds


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """All of it follows from the manifest; the run's policy says how many members a round takes, also the last one."""

    run: RunFacts
    seed: bytes  # of the pairings
    chunks: int  # of what two exchange
    check: Callable[[int, Payload], None]  # PayloadError for bytes that are no such chunk, by its index
    layout: bytes  # of every replica, and
    state_chunks: int  # of how many chunks it is
    check_state: Callable[[int, Payload], None]  # PayloadError for bytes that are no such chunk, by its index
    window: int = WINDOW  # rounds that two may be apart and still meet; who is further behind copies a replica

    @property
    def history(self) -> Digest:
        """A constant of the run: whose status has another one is in another run."""
        return self.run.origin.history

    @property
    def round(self) -> int:
        """That of the state that the run begins with."""
        return self.run.origin.round

    @property
    def policy(self) -> Policy:
        """How many members it takes."""
        return self.run.policy

    @property
    def limit(self) -> int:
        """No replica stands after a later round, whoever says so; numbers near it can still be sent.

        The round after it is the run's last, in which all replicas are averaged.
        """
        return self.run.last_round - 1 if self.run.last_round else MAX_INT - self.window
