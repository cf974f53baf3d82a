"""Says in the log when the node comes into another state, and on what evidence: once for each change.

Rules:
- A state is said when it has held for a while. Bad news is not held for long, only until the members that are lost
  together are all missed, so that they stand in one line; good news is, so that a state that flaps is said once.
- CONNECTED and IN-ROUND are one here: they follow each other in every round. The word is that of the moment.
- Codes: state-split and state-solo (of a node that had others) are warnings, state-together and state-solo (of one that
  waits for the first) are not. Warnings say what to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from shoal.node.api.answers import Status
from shoal.node.api.status import ADVICE

LOOK = 1.0  # seconds
BAD_HOLDS, GOOD_HOLDS = 2.0, 5.0  # seconds
TOGETHER = ("CONNECTED", "IN-ROUND")

log = logging.getLogger("shoal.daemon")


class Transitions:
    """`status` is the node's, as the API gives it."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status
        self._said = ""
        self._seen, self._since = "", 0.0

    async def run(self) -> None:
        """For good."""
        while True:
            self.look(asyncio.get_running_loop().time(), self._status())
            await asyncio.sleep(LOOK)

    def look(self, now: float, status: Status) -> None:
        """Say it, if the node is elsewhere than it was said to be."""
        kind = "together" if status["state"] in TOGETHER else status["state"].lower()
        if kind != self._seen:
            self._seen, self._since = kind, now
        holds = GOOD_HOLDS if kind == "together" else BAD_HOLDS
        if kind != self._said and now >= self._since + holds:
            before, self._said = self._said, kind
            _say(kind, before, status)


def _say(kind: str, before: str, status: Status) -> None:
    is_bad = kind == "split" or (kind == "solo" and before != "")
    words = f"{status['state']}: {_evidence(kind, before, status)}"
    if is_bad:
        words += f". {ADVICE[status['state']]}"
    fields = {"state": status["state"], "before": before}
    log.log(logging.WARNING if is_bad else logging.INFO, "%s", words, extra={"code": f"state-{kind}", "fields": fields})


def _evidence(kind: str, before: str, status: Status) -> str:
    if kind == "split":
        return str(status["evidence"])
    if kind == "solo":
        return "the last connection is lost" if before else "nobody is connected yet"
    runs = [f"{row['name']} has {row['members']} here" for row in status["runs"] if row.get("members")]
    peers = "1 peer is" if status["peers"] == 1 else f"{status['peers']} peers are"
    return "; ".join([f"{peers} connected", *runs])
