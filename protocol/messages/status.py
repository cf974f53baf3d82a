"""What a member says of itself, gossiped by membership and shown by `shoal peers` and the page."""

from __future__ import annotations

from shoal.protocol.base.ids import Digest
from shoal.protocol.base.wire import value


@value
class RunStatus:
    """A member's standing in a run. `round`, `history` and `root` are those of its last applied commit."""

    round: int
    history: Digest
    root: Digest
    phase: str  # "syncing" | "training" | "matching" | "reducing" | "preparing" | "waiting"
    step: int  # inner steps done in this round
    samples: int  # tokens behind the committed state
    loss: float | None  # training loss, mean over the last few inner steps
    trains: bool  # False: a member of weight 0 that keeps state and votes
    up: int  # bytes per second that this member's line carries away from it, 0 = not measured yet
    down: int  # and towards it
    reachability: str  # "public" | "nat" | "unknown"
