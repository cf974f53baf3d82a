"""What a relay has promised to whom, and what it has done for them so far: all limits, and no bytes.

Rules:
- A reservation lets others be connected with its holder. It ends when it is not renewed in time. When all are taken,
  nobody new gets one; of one host (behind a router there may be several peers) only some.
- A circuit is on the account of both of its ends: each has a bounded number, few of them with the same other end, and a
  rate that all of its circuits share. All circuits together have another. Who exceeds a rate is read more slowly.
- A circuit ends when it has carried its share of bytes, or its time is over. Its ends may open another.
- What is asked of us is counted, too: a peer that asks without end is refused without further thought.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import IntEnum

from shoal.protocol.allowance import Allowance, Allowances
from shoal.protocol.ids import PeerId

MIB = 1 << 20


class Status(IntEnum):
    """Of an answer, as the specification numbers them."""

    OK = 100
    RESERVATION_REFUSED = 200
    RESOURCE_LIMIT_EXCEEDED = 201
    PERMISSION_DENIED = 202
    CONNECTION_FAILED = 203
    NO_RESERVATION = 204
    MALFORMED_MESSAGE = 400
    UNEXPECTED_MESSAGE = 401


class Refused(Exception):
    """The relay does not do it; why not."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.name.lower().replace("_", " "))
        self.status = status


@dataclass(frozen=True, slots=True)
class Limits:
    """What a relay gives; bytes and seconds. Rates are (burst, per second)."""

    reservations: int = 128
    reservations_of_host: int = 16
    reserved_for: float = 1800.0
    circuits: int = 128
    circuits_of_peer: int = 16
    circuits_of_pair: int = 2
    circuit_lasts: float = 3600.0
    circuit_carries: int = 1024 * MIB
    rate_of_peer: tuple[float, float] = (32 * MIB, 2 * MIB)
    rate_in_all: tuple[float, float] = (128 * MIB, 16 * MIB)
    questions: tuple[float, float] = (32, 2.0)
    peers: int = 1024  # whose rates are remembered


LIMITS = Limits()


class Circuit:
    """One circuit's account."""

    def __init__(self, book: Book, ends: tuple[PeerId, PeerId], until: float, carries: int) -> None:
        self.ends, self.until = ends, until
        self._book, self._left = book, carries

    def carry(self, now: float, size: int) -> float:
        """So many bytes are to be passed on: seconds to wait before the next. Refused if its share is used up."""
        self._left -= size
        if self._left < 0 or now >= self.until:
            raise Refused(Status.RESOURCE_LIMIT_EXCEEDED)
        return self._book.spend(now, self.ends, size)

    def close(self) -> None:
        """It is over; may be called again."""
        self._book.close(self)


class Book:
    """A relay's accounts."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self._limits = limits
        self._reserved: dict[PeerId, tuple[float, str]] = {}  # until when, and from which host
        self._circuits: set[Circuit] = set()
        self._of_peer: Counter[PeerId] = Counter()
        self._questions = Allowances[PeerId](*limits.questions, limits.peers)
        self._rates = Allowances[PeerId](*limits.rate_of_peer, limits.peers)
        self._rate = Allowance(*limits.rate_in_all)
        self.carried = 0  # bytes in all

    @property
    def limits(self) -> Limits:
        """What is given."""
        return self._limits

    def reservations(self, now: float) -> int:
        """How many there are."""
        self._expire(now)
        return len(self._reserved)

    @property
    def circuits(self) -> int:
        """How many there are."""
        return len(self._circuits)

    def reserve(self, now: float, peer: PeerId, host: str) -> float:
        """Promise `peer`, connected from `host`, to connect others with it; until when. Refused if there is no room."""
        self._ask(now, peer)
        self._expire(now)
        others = [where for holder, (_, where) in self._reserved.items() if holder != peer]
        if len(others) >= self._limits.reservations or others.count(host) >= self._limits.reservations_of_host:
            raise Refused(Status.RESERVATION_REFUSED)
        until = now + self._limits.reserved_for
        self._reserved[peer] = until, host
        return until

    def open(self, now: float, source: PeerId, target: PeerId) -> Circuit:
        """Account for a circuit between the two. Refused if `target` has no reservation, or there are too many."""
        self._ask(now, source)
        self._expire(now)
        if target not in self._reserved:
            raise Refused(Status.NO_RESERVATION)
        limits = self._limits
        busiest = max(self._of_peer[source], self._of_peer[target])
        alike = sum(circuit.ends == (source, target) for circuit in self._circuits)
        if alike >= limits.circuits_of_pair:
            raise Refused(Status.RESOURCE_LIMIT_EXCEEDED)
        if source == target or len(self._circuits) >= limits.circuits or busiest >= limits.circuits_of_peer:
            raise Refused(Status.RESOURCE_LIMIT_EXCEEDED)
        circuit = Circuit(self, (source, target), now + limits.circuit_lasts, limits.circuit_carries)
        self._circuits.add(circuit)
        self._of_peer.update(circuit.ends)
        return circuit

    def spend(self, now: float, ends: tuple[PeerId, PeerId], size: int) -> float:
        """Bytes that a circuit carries: the seconds until all rates allow the next."""
        self.carried += size
        return max(self._rate.owe(now, size), *(self._rates.of(peer).owe(now, size) for peer in ends))

    def close(self, circuit: Circuit) -> None:
        """A circuit has ended."""
        if circuit in self._circuits:
            self._circuits.remove(circuit)
            self._of_peer.subtract(circuit.ends)
            self._of_peer = +self._of_peer

    def _ask(self, now: float, peer: PeerId) -> None:
        if not self._questions.of(peer).take(now):
            raise Refused(Status.RESOURCE_LIMIT_EXCEEDED)

    def _expire(self, now: float) -> None:
        for peer in [peer for peer, (until, _) in self._reserved.items() if until <= now]:
            del self._reserved[peer]
