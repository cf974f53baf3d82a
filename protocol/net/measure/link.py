"""How we are connected with a peer and why, from the present connections and the journal of what was tried. Pure.

The reason is that of the path in use. Codes are for programs, and keep their meaning:

    dialled          we dialled its own address         it-dialled      it dialled us
    reversal         called by a relay, dialled back    met             both dialled at the same moment
    relay            by a relay, nothing tried yet      relay-failed    by a relay, as all tries to meet failed
    relay-symmetric  by a relay, as a router gives each destination another port
    relay-early      by a relay, as it is not known yet where the two can meet
    none             no connection
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.protocol.base.ids import PeerId, short
from shoal.protocol.base.multiaddrs import is_relayed, relay_of
from shoal.protocol.base.paths import PUNCHED
from shoal.protocol.net.measure.journal import OK, Step, Way
from shoal.protocol.net.measure.rates import Gauge

MAKING = (Way.DIAL, Way.MEET, Way.REVERSAL, Way.CAME)
ROUND_TO = 5.0  # seconds: countdowns are rounded, as watchers print every change
NOT_YET = "it is not known yet where the two can meet"
WHOSE_ROUTER = {
    "no-place-here": "this node's router gives each destination another port (symmetric)",
    "no-place-there": "its router gives each destination another port (symmetric)",
    "no-place-both": "both routers give each destination another port (symmetric)",
}


@dataclass(frozen=True, slots=True)
class Link:
    """The link to a connected peer, for people to read."""

    peer: PeerId
    path: str  # see protocol/base/paths.py
    rtt_ms: float | None
    bytes_sent: int
    bytes_received: int
    addresses: tuple[str, ...]
    ahead: float | None = None  # seconds that our clock is ahead of the peer's
    sockets: int = 0  # bulk sockets that we send on; with none, payloads go by streams
    came_to: tuple[str, ...] = ()  # our addresses that the peer has dialled


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """One connection with a peer."""

    leads_to: tuple[str, ...]  # the addresses of the other end
    is_ours: bool  # whether we have dialled it


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a peer is reached as it is: a code for programs, words for people."""

    code: str
    words: str


@dataclass(frozen=True, slots=True)
class LinkReport:
    """How one peer is reached or not, what was tried, and what was measured."""

    peer: PeerId
    path: str | None  # None: not connected
    connections: tuple[ConnectionInfo, ...]
    steps: tuple[Step, ...]
    gauge: Gauge
    known: tuple[str, ...] = ()  # its known addresses

    @property
    def relay(self) -> PeerId | None:
        """The relay through which it is reached; None if it is reached directly or not at all."""
        relayed = [each for line in self.connections for each in line.leads_to if is_relayed(each)]
        return PeerId(relay_of(relayed[0])[1]) if self.path == "relayed" and relayed else None

    def reason(self, now: float) -> Reason:
        """Why the path is as it is; `now` is in seconds since 1970."""
        if self.path is None:
            return Reason("none", "no connection")
        if self.path == "relayed":
            return self._why_relayed(now)
        return self._why_direct()

    def _why_relayed(self, now: float) -> Reason:
        by = f"relayed by {short(self.relay or '?')}"
        tries = [step for step in self._since() if step.way is Way.MEET and step.code != OK]
        if not tries:
            return Reason("relay", f"{by}: no direct way was tried yet")
        last = tries[-1]
        if last.code in WHOSE_ROUTER:
            return Reason("relay-symmetric", f"{by}: {WHOSE_ROUTER[last.code]}")
        if last.code == "no-place-yet":
            return Reason("relay-early", f"{by}: {NOT_YET}{_next(last.again - now)}")
        number = sum(step.times for step in tries)
        often = "a try" if number == 1 else f"{number} tries"
        return Reason("relay-failed", f"{by}: {often} to meet failed ({last.words}){_next(last.again - now)}")

    def _why_direct(self) -> Reason:
        """The reason of a direct path, by the path itself: a punched peer may be dialled later, or be noted later."""
        direct = [line for line in self.connections if not any(map(is_relayed, line.leads_to))]
        made = [step for step in self._since() if step.way in MAKING and step.code == OK]
        if self.path == PUNCHED:
            by = [f", with the help of the relay {short(step.where)}" for step in made if step.way is Way.MEET]
            return Reason("met", f"met at the same moment{by[-1] if by else ''}")
        last = made[-1] if made else None
        if last is not None and last.way is Way.REVERSAL:
            return Reason("reversal", f"it called by a relay, and you dialled back to {last.where}")
        ours = [each for line in direct if line.is_ours for each in line.leads_to]
        theirs = [each for line in direct if not line.is_ours for each in line.leads_to]
        if ours:
            return Reason("dialled", f"you dialled its own address {ours[0]}")
        return Reason("it-dialled", f"it dialled you, from {theirs[0]}" if theirs else "it dialled you")

    def _since(self) -> Sequence[Step]:
        """The steps since the last connection was lost."""
        lost = [number for number, step in enumerate(self.steps) if step.way is Way.LOST]
        return self.steps[lost[-1] + 1 :] if lost else self.steps


def _next(wait: float) -> str:
    return f"; the next in {max(ROUND_TO, ROUND_TO * round(wait / ROUND_TO)):.0f} s" if wait > 0 else ""
