"""An anchor: a decided entry of a run's log, by its number and the beginnings of its digest and of its branch's.

Whoever has one knows that this branch goes at least that far, and which entry is there: so an old copy of the log, or
another one, is not taken for the run's.
"""

from __future__ import annotations

from shoal.protocol.base.wire import value

ANCHOR_SIZE = (
    8  # bytes of the digest: few, as people hand them on; another entry with them would need a quorum's signatures
)


@value
class Anchor:
    """One entry."""

    number: int  # from 1
    digest: bytes  # the first ANCHOR_SIZE bytes of the entry's
    branch: bytes  # and of the branch on which the log is from that entry on
