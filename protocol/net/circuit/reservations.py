"""Keeps reservations with several relays, so that one may vanish. Pure.

Rules:
- WANTED reservations are held. One that ends, or whose relay is gone, is replaced at once, by the first candidate that
  has not refused recently.
- A reservation is renewed after half of its time. If that fails, another relay is asked.
- A relay that refuses or does not answer is not asked for a moment, and for twice as long each time: it may just have
  started, and not know yet that it can be a relay.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from shoal.protocol.base.ids import PeerId

WANTED = 3  # reservations
LEFT_ALONE = (1.0, 60.0)  # seconds until a relay is asked again: the first time, and at most
MOST_IN_VAIN = 256  # relays that are remembered as left alone


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation: until it expires, `relay` connects us with peers that dial one of the addresses."""

    relay: PeerId
    expires: float  # on our monotonic clock, as the wall clock may be set
    addresses: tuple[str, ...]  # of circuits to us, without our own PeerID


@dataclass(slots=True)
class Held:
    """A reservation, and when to renew it."""

    reservation: Reservation
    renew_at: float


@dataclass(frozen=True, slots=True)
class Pause:
    """For how many seconds a relay is left alone, and until when."""

    length: float
    until: float


class Reservations:
    """The reservations that we hold; decides which relays to ask."""

    def __init__(self) -> None:
        self._held: dict[PeerId, Held] = {}
        self._asked: set[PeerId] = set()
        self._in_vain: OrderedDict[PeerId, Pause] = OrderedDict()

    @property
    def relays(self) -> list[PeerId]:
        """The relays that connect others with us."""
        return list(self._held)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where others may dial us through relays: first one address of each relay, then the second ones."""
        each = [held.reservation.addresses for held in self._held.values()]
        longest = max(map(len, each), default=0)
        return tuple(addresses[number] for number in range(longest) for addresses in each if number < len(addresses))

    def whom_to_ask(self, now: float, candidates: Iterable[PeerId]) -> list[PeerId]:
        """The relays to ask for a reservation now; `candidates` are the available ones, the best first."""
        for relay in [relay for relay, held in self._held.items() if held.reservation.expires <= now]:
            del self._held[relay]
        due = [relay for relay, held in self._held.items() if held.renew_at <= now and relay not in self._asked]
        missing = WANTED - len(self._held) - len(self._asked - self._held.keys())
        fresh = [relay for relay in candidates if self._is_fresh(now, relay)][: max(0, missing)]
        self._asked.update(due, fresh)
        return due + fresh

    def granted(self, now: float, reservation: Reservation) -> None:
        """A relay that was asked has given a reservation."""
        self._asked.discard(reservation.relay)
        self._in_vain.pop(reservation.relay, None)
        self._held[reservation.relay] = Held(reservation, now + (reservation.expires - now) / 2)

    def refused(self, now: float, relay: PeerId) -> None:
        """A relay that was asked has given none, or is gone."""
        self._asked.discard(relay)
        self._held.pop(relay, None)
        first, longest = LEFT_ALONE
        known = self._in_vain.pop(relay, None)
        length = first if known is None else min(longest, 2 * known.length)
        self._in_vain[relay] = Pause(length, now + length)
        if len(self._in_vain) > MOST_IN_VAIN:
            self._in_vain.popitem(last=False)

    def lost(self, relay: PeerId) -> bool:
        """The connection with a relay is lost, and with it the reservation; whether there was one."""
        return self._held.pop(relay, None) is not None

    def clear(self) -> list[PeerId]:
        """Give up all reservations; returns their relays."""
        relays = list(self._held)
        self._held.clear()
        return relays

    def _is_fresh(self, now: float, relay: PeerId) -> bool:
        pause = self._in_vain.get(relay)
        return relay not in self._held and relay not in self._asked and (pause is None or pause.until <= now)
