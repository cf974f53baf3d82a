"""What to do next to keep our ports mapped at the router: find it, look at it, map. Pure.

Rules:
- A lease is renewed at half its time. The router's status is asked every LOOK seconds (a look): if its external address
  has changed, or a mapping is gone, it has been restarted, and mappings are requested again at once.
- A router that does not answer a look is asked MISSES times in all, SOON after each other; then another is looked for,
  at once if this one had given us a port. While no router is found, or none gives a port, pauses double up to
  PAUSES[1].
- A router that answers looks but no request for a port is sent such requests ever more rarely; a lease that cannot be
  renewed lasts to its end.
- If another machine has our external port, random ones are requested, MAX_OTHER_PORTS times.
- When this machine is in another network, all of it starts over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from shoal.node.peers.gateway.router import PortLease, RouterStatus

LIFETIME = 3600  # seconds that a mapping is asked for
SHORTEST = 20.0  # seconds: a shorter lifetime is treated as this
LOOK = 30.0  # seconds
SOON = 5.0  # seconds after a look that failed
MISSES = 3
PAUSES = (30.0, 1800.0)  # seconds: the first and the longest
MAX_OTHER_PORTS = 4
OTHER_PORTS = (20_000, 60_000)


@dataclass(frozen=True, slots=True)
class FindRouter:
    """Look for a router."""


@dataclass(frozen=True, slots=True)
class Look:
    """Ask the router for its external address, and whether it holds our leases."""


@dataclass(frozen=True, slots=True)
class MapPort:
    """Ask the router for a mapping."""

    port: int
    external: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing for so many seconds."""

    seconds: float


Action = FindRouter | Look | MapPort | Wait


class Pause:
    """How long to wait before the next try: twice as long each time."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def next(self) -> float:
        first, longest = PAUSES
        self._seconds = min(longest, max(first, 2 * self._seconds))
        return self._seconds


class Upkeep:
    """Keeps `ports` mapped. The caller carries out the action of `next`, and reports its result by another method."""

    def __init__(self, ports: Sequence[int], random: Random) -> None:
        self._ports, self._random = tuple(ports), random
        self.moved(0.0)

    def moved(self, now: float) -> None:
        """We are in another network, about which nothing is known."""
        self._searches = Pause()
        self._forget(now)

    def _forget(self, now: float) -> None:
        self.host: str | None = None  # the router's external address; None while there is no router
        self.leases: dict[int, PortLease] = {}
        self.has_router = False
        self._look_at, self._misses = now, 0
        self._due = dict.fromkeys(self._ports, now)
        self._ends = dict.fromkeys(self._ports, now)  # when leases end, as far as known
        self._refusals = {port: Pause() for port in self._ports}
        self._taken = dict.fromkeys(self._ports, 0)  # how often an external port was taken
        self._other = dict[int, int]()  # external ports to request, if not the same

    def next(self, now: float) -> Action:
        """What to do now."""
        if now >= self._look_at:
            return Look() if self.has_router else FindRouter()
        due = min(self._ports, key=self._due.__getitem__) if self.has_router else None
        if due is not None and now >= self._due[due]:
            held = self.leases.get(due)
            return MapPort(due, held.external if held else self._other.get(due, due))
        return Wait(min(self._look_at, self._due[due] if due is not None else self._look_at) - now)

    def found(self, now: float) -> None:
        """A router was found."""
        self.has_router, self._look_at = True, now

    def failed(self, now: float) -> None:
        """No router was found, or it did not answer a look."""
        if not self.has_router:
            self._look_at = now + self._searches.next()
        elif self._misses + 1 < MISSES:
            self._misses += 1
            self._look_at = now + SOON
            self._due = {port: max(due, now + SOON) for port, due in self._due.items()}
        else:
            has_served = bool(self.leases)
            self._forget(now)
            if not has_served:
                self._look_at = now + self._searches.next()

    def saw(self, now: float, seen: RouterStatus) -> None:
        """The router has answered a look."""
        self._misses, self._look_at = 0, now + LOOK
        lost = self._ports if self.host not in (None, seen.host) else seen.lost
        for port in lost:
            self._due[port] = self._ends[port] = now
        self.host = seen.host

    def mapped(self, now: float, lease: PortLease) -> None:
        """A port leads to us from outside."""
        lifetime = max(SHORTEST, lease.lifetime)
        self.leases[lease.port] = lease
        self._due[lease.port], self._ends[lease.port] = now + lifetime / 2, now + lifetime
        self._refusals[lease.port], self._taken[lease.port] = Pause(), 0
        self._searches = Pause()

    def unanswered(self, now: float, port: int) -> None:
        """A request for a port had no valid answer; the next look tells whether the router is there."""
        later, end = now + self._refusals[port].next(), self._ends[port]
        if now >= end:
            self.leases.pop(port, None)
        self._due[port] = min(later, end) if now < end else later
        self._look_at = min(self._look_at, now + SOON)

    def declined(self, now: float, port: int, is_taken: bool) -> None:
        """A request for a port was refused."""
        self.leases.pop(port, None)
        if is_taken and self._taken[port] < MAX_OTHER_PORTS:
            self._taken[port] += 1
            self._other[port] = self._random.randint(*OTHER_PORTS)
        else:
            self._due[port] = now + self._refusals[port].next()
