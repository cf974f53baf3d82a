"""Who may decide: dynamic-linear voting (Jajodia and Mutchler, ACM TODS 1990).

The voters of a round are named by the round before it. A quorum is more than half of them, or exactly half with
the first one, so any two quorums share a member. A voter that left with a signed LEAVE is not counted: the LEAVE
carries what it had prepared, so it still answers every later poll.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from shoal.protocol.base.ids import PeerId


def is_quorum(present: Collection[PeerId], voters: Sequence[PeerId], left: Collection[PeerId] = ()) -> bool:
    """Whether `present` can decide for `voters`, of whom `left` have signed off."""
    present, left = set(present), set(left)  # they come from others, and may be thousands
    entitled = [voter for voter in voters if voter not in left]
    count = sum(voter in present for voter in entitled)
    if 2 * count == len(entitled) and entitled:
        return entitled[0] in present
    return 2 * count > len(entitled)
