"""Logs each change of the node's state, with the evidence for it.

Rules:
- A state is logged once it has held for a while. For bad news this is short, just long enough that members that are
  lost together are in one line. For good news it is longer, so that a flapping state is logged once.
- CONNECTED and IN-ROUND count as one state, because they alternate in every round; the log names the current one.
- Codes: state-split and state-solo (if the node had others before) are warnings, which say what to do; state-together
  and state-solo (if it waits for its first peer) are not. Either state-solo says by which command others join a run in
  which nobody else is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from shoal.node.api.answers import Status
from shoal.node.api.status import advice, invitations

LOOK = 1.0  # seconds between two checks
BAD_HOLDS, GOOD_HOLDS = 2.0, 5.0  # seconds for which a state must hold before it is logged
CODES = {"split": "state-split", "solo": "state-solo", "together": "state-together"}
TOGETHER = ("CONNECTED", "IN-ROUND")

log = logging.getLogger("shoal.daemon")


class Transitions:
    """Watches the node's state; `status` gives the status of the API."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status
        self._said = ""
        self._seen, self._since = "", 0.0

    async def run(self) -> None:
        """Check again and again until cancelled."""
        while True:
            self.look(asyncio.get_running_loop().time(), self._status())
            await asyncio.sleep(LOOK)

    def look(self, now: float, status: Status) -> None:
        """Log the state if it differs from the one that was logged last, and has held."""
        kind = "together" if status["state"] in TOGETHER else status["state"].lower()
        if kind != self._seen:
            self._seen, self._since = kind, now
        holds = GOOD_HOLDS if kind == "together" else BAD_HOLDS
        if kind != self._said and now >= self._since + holds:
            before, self._said = self._said, kind
            _say(kind, before, status)


def _say(kind: str, before: str, status: Status) -> None:
    is_bad = kind == "split" or (kind == "solo" and before != "")
    told = advice(status) if is_bad else invitations(status) if kind == "solo" else None
    words = ". ".join(filter(None, (f"{status['state']}: {_evidence(kind, before, status)}", told)))
    fields = {"state": status["state"], "before": before}
    log.log(logging.WARNING if is_bad else logging.INFO, "%s", words, extra={"code": CODES[kind], "fields": fields})


def _evidence(kind: str, before: str, status: Status) -> str:
    if kind == "split":
        return str(status["evidence"])
    if kind == "solo":
        return "the last connection is lost" if before else "nobody is connected yet"
    runs = [f"{row['name']} has {row['members']} here" for row in status["runs"] if row.get("members")]
    peers = "1 peer is" if status["peers"] == 1 else f"{status['peers']} peers are"
    return "; ".join([f"{peers} connected", *runs])
