"""What is logged about peers' mistakes.

Each kind of mistake of a peer is logged once, and MAX_REASONS of them; of all peers, at a bounded rate. Nobody can make
us remember, or write, more than a bounded amount.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict

from shoal.protocol.allowance import Allowance
from shoal.protocol.errors import RemoteError
from shoal.protocol.ids import PeerId

MAX_REASONS = 16  # kinds of mistakes of one peer that are logged
LINES = (100, 0.1)  # about all peers, in a burst and per second

log = logging.getLogger(__name__)


class Complaints:
    """Of at most `most` peers."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[PeerId | None, set[str]] = OrderedDict()
        self._may_write = Allowance(*LINES)

    def add(self, error: RemoteError) -> None:
        """Log a mistake, unless it was."""
        reasons = self._known.setdefault(error.peer, set())
        self._known.move_to_end(error.peer)
        if error.reason not in reasons and len(reasons) < MAX_REASONS:
            reasons.add(error.reason)
            if self._may_write.take(asyncio.get_running_loop().time()):
                log.warning("%s", error, extra={"code": "peer-mistake"})
        if len(self._known) > self._most:
            self._known.popitem(last=False)
