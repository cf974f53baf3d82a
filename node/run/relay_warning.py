"""Warns while a run's payloads take relays, which makes rounds slow.

The log says when that begins and when it is over; in between `shoal status` and the page show it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from shoal.node.api.answers import NodeWarning
from shoal.node.base.logs import warn
from shoal.node.peers.gateway.router import port_in, ports_to_forward
from shoal.protocol.averaging.events import Begun
from shoal.protocol.base.paths import RELAYED
from shoal.protocol.net.circuit.accounts import LIMITS, MIB

CODE = "bulk-relayed"

log = logging.getLogger("shoal.run")


class RelayWarning:
    """The warning about the last group of one run."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._words = ""

    def begun(self, begun: Begun, own: Sequence[str]) -> None:
        """A round has its roster; from our `own` addresses follows which ports would have to be forwarded."""
        self._update(words(begun, port_in(own)))

    def met(self, path: str | None, own: Sequence[str]) -> None:
        """A replica has a partner for a round, and `path` is how their payloads go."""
        self._update(words_of_pair(port_in(own)) if path == RELAYED else "")

    def _update(self, found: str) -> None:
        before, self._words = self._words, found
        if self._words and not before:
            warn(log, CODE, f"{self._run}: {self._words}")
        elif before and not self._words:
            log.info("%s: no payload takes a relay any more", self._run)

    def warnings(self) -> list[NodeWarning]:
        """For `status`."""
        return [{"code": CODE, "words": self._words}] if self._words else []


def words_of_pair(port: int) -> str:
    """Why an exchange is slow, and what helps."""
    rate = round(LIMITS.rate_of_peer[1] / MIB)
    return (
        f"the exchange of this round is slow, because its payloads take a relay, which passes on about {rate} MiB/s: "
        f"forward {ports_to_forward(port)} to this machine in its router, and it is as fast as its line"
    )


def words(begun: Begun, port: int) -> str:
    """Why a round is slow, and what helps; empty if no payload of it takes a relay, as far as its members have said."""
    by_relay = len(begun.ways.by_relay(begun.owners, begun.roster))
    if not by_relay:
        return ""
    rate = round(LIMITS.rate_of_peer[1] / MIB)
    return (
        f"rounds are slow, because payloads of {by_relay} of {len(begun.roster)} members take relays, which pass on "
        f"about {rate} MiB/s for each: no member can be reached by all others; forward {ports_to_forward(port)} to "
        "this machine in its router, or its ports to that of any other member, and they are as fast as its line"
    )
