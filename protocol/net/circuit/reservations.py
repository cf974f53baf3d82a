"""Which relays we hold reservations with: enough that one may vanish, chosen among those available. Pure.

Rules:
- WANTED reservations are held. One that ends, or whose relay is gone, is replaced at once, by the first candidate that
  has not refused recently.
- A reservation is renewed at half of its time. If that fails, another relay is asked.
- A relay that refuses, or does not answer, is not asked for a moment, and for twice as long each time: it may just have
  started, and not know yet that it is a relay.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from shoal.protocol.base.ids import PeerId

WANTED = 3
LEFT_ALONE = (1.0, 60.0)  # seconds: the first time, and the longest
MOST_IN_VAIN = 256  # relays that are left alone


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation: `relay` connects others with us until then, who dial it at one of the addresses."""

    relay: PeerId
    expires: float  # by the monotonic clock of whoever keeps it: the wall clock may be set
    addresses: tuple[str, ...]  # of circuits that end here, without our own name


@dataclass(slots=True)
class Held:
    """A reservation that we hold."""

    promise: Reservation
    renew_at: float


@dataclass(frozen=True, slots=True)
class Pause:
    """For how long a relay is left alone, and until when."""

    length: float
    until: float


class Reservations:
    """What we hold, and whom to ask."""

    def __init__(self) -> None:
        self._held: dict[PeerId, Held] = {}
        self._asked: set[PeerId] = set()
        self._in_vain: OrderedDict[PeerId, Pause] = OrderedDict()

    @property
    def relays(self) -> list[PeerId]:
        """Those that connect others with us."""
        return list(self._held)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where others may dial us by relays: one of each first."""
        each = [held.promise.addresses for held in self._held.values()]
        longest = max(map(len, each), default=0)
        return tuple(addresses[number] for number in range(longest) for addresses in each if number < len(addresses))

    def whom_to_ask(self, now: float, candidates: Iterable[PeerId]) -> list[PeerId]:
        """Ask these for a reservation now; `candidates` are the relays that there are, the best first."""
        for relay in [relay for relay, held in self._held.items() if held.promise.expires <= now]:
            del self._held[relay]
        due = [relay for relay, held in self._held.items() if held.renew_at <= now and relay not in self._asked]
        missing = WANTED - len(self._held) - len(self._asked - self._held.keys())
        fresh = [relay for relay in candidates if self._is_fresh(now, relay)][: max(0, missing)]
        self._asked.update(due, fresh)
        return due + fresh

    def granted(self, now: float, promise: Reservation) -> None:
        """A relay that was asked gives us a reservation."""
        self._asked.discard(promise.relay)
        self._in_vain.pop(promise.relay, None)
        self._held[promise.relay] = Held(promise, now + (promise.expires - now) / 2)

    def refused(self, now: float, relay: PeerId) -> None:
        """A relay that was asked gives us none, or is gone."""
        self._asked.discard(relay)
        self._held.pop(relay, None)
        first, longest = LEFT_ALONE
        known = self._in_vain.pop(relay, None)
        length = first if known is None else min(longest, 2 * known.length)
        self._in_vain[relay] = Pause(length, now + length)
        if len(self._in_vain) > MOST_IN_VAIN:
            self._in_vain.popitem(last=False)

    def lost(self, relay: PeerId) -> bool:
        """The connection with a relay is gone, and with it the reservation; whether there was one."""
        return self._held.pop(relay, None) is not None

    def clear(self) -> list[PeerId]:
        """None is wanted any more; those that were held."""
        relays = list(self._held)
        self._held.clear()
        return relays

    def _is_fresh(self, now: float, relay: PeerId) -> bool:
        pause = self._in_vain.get(relay)
        return relay not in self._held and relay not in self._asked and (pause is None or pause.until <= now)
