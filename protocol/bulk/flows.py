"""Which flow a payload belongs to, and what of each a peer may make us hold.

What comes of SCATTER is capped: beyond HELD bytes of one peer that wait here to be added, we read no more of it, and
its writes wait. What comes of GATHER is always taken: so an owner whose buffers are full still gets the results of
others, and nothing deadlocks. Of contributors, the first of a roster never waits for another, the second for the
first only, and so on: as all send the chunks of an owner in the same order, each is added in the end.
"""

from __future__ import annotations

from shoal.protocol.messages.bulk import Flow
from shoal.protocol.messages.rounds import Contribution
from shoal.protocol.wire import Message

HELD: dict[Flow, int | None] = {Flow.SCATTER: 32 << 20, Flow.GATHER: None}  # bytes
PROTOCOLS = {Flow.SCATTER: "/shoal/scatter/1", Flow.GATHER: "/shoal/gather/1"}  # of streams


def flow_of(message: Message) -> Flow:
    """Where a bulk message belongs."""
    return Flow.SCATTER if isinstance(message, Contribution) else Flow.GATHER
