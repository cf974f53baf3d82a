"""After the commits of a run: looks at the node again and again, and has the newest weights taken.

Rules:
- Only the newest counts: what was committed while we were loading, or had no room, is skipped.
- Loading takes at most half of one thread's time: after it we wait for as long as it took.
- A node that is gone, or has left the run, leaves what is served as it was; that is said once in the log, and in
  /v1/models for as long as it lasts. We go on looking, and catch up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from shoal.node.handout.reader import Newest
from shoal.node.serve.live.scorer import LiveScorer, Version
from shoal.protocol.errors import ShoalError
from shoal.protocol.ids import Digest, short

LOOK = 0.25  # seconds between two looks

Ask = Callable[[Digest, bool], Newest]
"""The newest state, with its parameters if its root is another, and they are wanted."""
Load = Callable[[Newest], Version]

log = logging.getLogger("shoal.serve")


class Follower:
    """Of the run named `name`, for `scorer`."""

    def __init__(self, name: str, scorer: LiveScorer, ask: Ask, load: Load) -> None:
        self._name, self._scorer, self._ask, self._load = name, scorer, ask, load
        self._trouble = ""
        self._stand(scorer.newest.round)

    def follow(self, over: threading.Event) -> None:
        """Until that is set; in a thread of its own."""
        pause = LOOK
        while not over.wait(pause):
            began = time.monotonic()
            self.look()
            pause = max(LOOK, time.monotonic() - began)

    def look(self) -> None:
        """Once."""
        scorer = self._scorer
        try:
            found = self._ask(scorer.newest.root, scorer.has_room)
            if found.parameters is not None:
                scorer.take(self._load(found))
                log.info("%s: round %d, state %s", self._name, found.round, short(found.root))
        except ShoalError as error:
            self._note(str(error))
        except Exception as error:  # of a library, out of memory: what is served is whole
            self._note(f"the newest state cannot be loaded: {type(error).__name__}: {error}")
            log.debug("loading failed", exc_info=error)
        else:
            self._note("")
            self._stand(found.round)

    def _note(self, trouble: str) -> None:
        if trouble and not self._trouble:
            log.warning("%s stays at round %d: %s", self._name, self._scorer.newest.round, trouble)
        elif self._trouble and not trouble:
            log.warning("%s follows its run again, at round %d", self._name, self._scorer.newest.round)
        if trouble != self._trouble:
            self._trouble = trouble
            self._stand(self._scorer.standing["node_round"])

    def _stand(self, round: int) -> None:
        """What /v1/models says; `round` is the newest that the node was known to have."""
        standing: dict[str, Any] = {"follows": not self._trouble, "node_round": round}
        self._scorer.standing = standing | ({"trouble": self._trouble} if self._trouble else {})
