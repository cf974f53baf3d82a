"""Another node with our key: it gets our messages, and we its. Whoever meets one says so, once."""

from __future__ import annotations

import logging

from shoal.protocol.ids import PeerId

log = logging.getLogger(__name__)


class Namesake:
    """Of the node whose key says `peer`."""

    def __init__(self, peer: PeerId) -> None:
        self.words = (
            f"another node runs with a copy of this node's key ({peer}) and takes its messages: stop one of the two, "
            "or move its key file away so that it makes a key of its own"
        )
        self._was_met = False

    def meet(self) -> None:
        """There is one."""
        if not self._was_met:
            self._was_met = True
            log.warning("%s", self.words, extra={"code": "same-key"})
