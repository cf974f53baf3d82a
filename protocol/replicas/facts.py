"""What the members of a run of replicas know of it before they have met anybody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shoal.protocol.averaging.policy import Policy
from shoal.protocol.base.ids import Digest
from shoal.protocol.base.wire import MAX_INT, Payload

WINDOW = 8  # rounds


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """All of it follows from the manifest; `policy` is asked for the least number of members only."""

    seed: bytes  # of the pairings
    history: Digest  # a constant of the run: whose status has another one is in another run
    round: int  # of the state that the run begins with
    root: Digest  # of that state
    chunks: int  # of what two exchange
    check: Callable[[int, Payload], None]  # PayloadError for bytes that are no such chunk, by its index
    layout: bytes  # of every replica, and
    state_chunks: int  # of how many chunks it is
    check_state: Callable[[int, Payload], None]  # PayloadError for bytes that are no such chunk, by its index
    policy: Policy
    holds_origin: bool = True  # whether the state that the run begins with is here; else a replica is copied
    last: int | None = None  # round of the run
    window: int = WINDOW  # rounds that two may be apart and still meet; who is further behind copies a replica

    @property
    def limit(self) -> int:
        """No replica stands after a later round, whoever says so; numbers near it can still be sent."""
        return MAX_INT - self.window if self.last is None else self.last
