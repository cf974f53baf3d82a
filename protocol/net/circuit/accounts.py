"""The accounts of a relay: reservations, circuits and rates, with all limits; it moves no bytes itself.

Rules:
- A reservation lets others be connected with its holder. It ends if it is not renewed in time, or its holder is gone.
  If all are taken, nobody new gets one; one host (behind a router there may be several peers), and one network, get
  only some.
- A circuit counts for both of its ends: for the peer, its host and its network, as new PeerIDs cost nothing. Each of
  these may have a number of circuits that it has opened, and as many that others have opened to it, so that being
  called does not keep it from calling; and few with the same other end. Peers and hosts have a rate that all of their
  circuits share, and all circuits together have another. A peer that exceeds a rate is read more slowly.
- If the relay or any of these accounts is full, the idlest circuit of the host that has opened most of them is closed
  for a host that has opened fewer: so nobody can keep others from a relay by filling it.
- A circuit ends when it has carried its share of bytes, its time is over, or it was silent for long. Its ends may open
  another.
- Requests are counted, too: a peer that asks without end, under one PeerID or many, is refused at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import ip_interface

from shoal.protocol.base.allowance import Allowance, Allowances
from shoal.protocol.base.ids import PeerId

MIB = 1 << 20


class Status(IntEnum):
    """The status of an answer, numbered as in the specification."""

    OK = 100
    RESERVATION_REFUSED = 200
    RESOURCE_LIMIT_EXCEEDED = 201
    PERMISSION_DENIED = 202
    CONNECTION_FAILED = 203
    NO_RESERVATION = 204
    MALFORMED_MESSAGE = 400
    UNEXPECTED_MESSAGE = 401


class Refused(Exception):
    """The relay refuses a request, or a peer breaks the protocol; the status says why."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.name.lower().replace("_", " "))
        self.status = status


@dataclass(frozen=True, slots=True)
class Limits:
    """A relay's limits, in bytes and seconds. Rates are (burst, per second)."""

    reservations: int = 128
    reservations_of_host: int = 16
    reservations_of_network: int = 32
    reserved_for: float = 1800.0
    circuits: int = 128
    circuits_of_peer: int = 16
    circuits_of_host: int = 32
    circuits_of_network: int = 64
    circuits_of_pair: int = 2
    circuit_lasts: float = 3600.0
    circuit_idles: float = 120.0
    circuit_carries: int = 1024 * MIB
    rate_of_peer: tuple[float, float] = (32 * MIB, 2 * MIB)
    rate_of_host: tuple[float, float] = (64 * MIB, 4 * MIB)
    rate_in_all: tuple[float, float] = (128 * MIB, 16 * MIB)
    requests: tuple[float, float] = (32, 2.0)
    requests_of_host: tuple[float, float] = (128, 8.0)
    peers: int = 1024  # peers whose rates are remembered, and as many hosts


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class End:
    """One end of a circuit: a peer, and the host from which it is connected."""

    peer: PeerId
    host: str

    @property
    def accounts(self) -> tuple[str, str, str]:
        """The names of its accounts: of the peer, its host and its network."""
        return f"peer {self.peer}", f"host {self.host}", f"network {_network_of(self.host)}"


class Circuit:
    """The account of one circuit. `cut` is called after it was closed to make room for another."""

    def __init__(self, accounts: RelayAccounts, now: float, source: End, target: End) -> None:
        limits = accounts.limits
        self.source, self.target = source, target
        self.accounts = tuple(dict.fromkeys(source.accounts + target.accounts))  # one that both ends share pays once
        self.places = (
            *(("from", each) for each in source.accounts),
            *(("to", each) for each in target.accounts),
            ("in", "all"),
        )
        self.used_at = now
        self.cut: Callable[[], None] = lambda: None
        self._accounts, self._left = accounts, limits.circuit_carries
        self._idles, self._until = limits.circuit_idles, now + limits.circuit_lasts

    @property
    def ends_at(self) -> float:
        """When the circuit ends, unless it carries something before."""
        return min(self._until, self.used_at + self._idles)

    def carry(self, now: float, size: int) -> float:
        """Count `size` bytes; returns the seconds to wait before the next. Refused if the share is used up."""
        self._left -= size
        if self._left < 0 or now >= self._until:
            raise Refused(Status.RESOURCE_LIMIT_EXCEEDED)
        self.used_at = now
        return self._accounts.spend(now, self, size)

    def close(self) -> None:
        """The circuit has ended; may be called again."""
        self._accounts.close(self)


class RelayAccounts:
    """The accounts of a relay."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self._reserved: dict[PeerId, tuple[float, str]] = {}  # (end, host) of each reservation
        self._circuits: dict[Circuit, None] = {}  # the oldest first
        self._most = {
            "peer": limits.circuits_of_peer,
            "host": limits.circuits_of_host,
            "network": limits.circuits_of_network,
            "all": limits.circuits,
        }
        self._requests = {
            "peer": Allowances[str](*limits.requests, limits.peers),
            "host": Allowances[str](*limits.requests_of_host, limits.peers),
        }
        self._rates = {
            "peer": Allowances[str](*limits.rate_of_peer, limits.peers),
            "host": Allowances[str](*limits.rate_of_host, limits.peers),
        }
        self._rate = Allowance(*limits.rate_in_all)
        self.carried = 0  # bytes, by all circuits so far

    def reservations(self, now: float) -> int:
        """How many reservations there are."""
        self._expire(now)
        return len(self._reserved)

    @property
    def circuits(self) -> int:
        """How many circuits there are."""
        return len(self._circuits)

    @property
    def given(self) -> dict[str, int]:
        """How much we relay for others, for people to read; from any thread."""
        return {"reservations": len(self._reserved), "circuits": len(self._circuits), "carried_bytes": self.carried}

    @property
    def users(self) -> set[PeerId]:
        """The peers that have a reservation or a circuit, and would lose it if we disconnected; from any thread."""
        ends = {each.peer for circuit in list(self._circuits) for each in (circuit.source, circuit.target)}
        return ends | set(list(self._reserved))

    def reserve(self, now: float, peer: PeerId, host: str) -> float:
        """Give `peer`, connected from `host`, a reservation; returns when it ends. Refused if there is no room."""
        self._count_request(now, End(peer, host))
        self._expire(now)
        others, limits = [where for holder, (_, where) in self._reserved.items() if holder != peer], self.limits
        near = sum(_network_of(each) == _network_of(host) for each in others)
        is_much = others.count(host) >= limits.reservations_of_host or near >= limits.reservations_of_network
        if len(others) >= limits.reservations or is_much:
            raise Refused(Status.RESERVATION_REFUSED)
        until = now + limits.reserved_for
        self._reserved[peer] = until, host
        return until

    @property
    def holders(self) -> list[PeerId]:
        """The peers with a reservation, those included that have run out and were not removed yet."""
        return list(self._reserved)

    def release(self, peer: PeerId) -> None:
        """Remove the reservation of a peer that is gone."""
        self._reserved.pop(peer, None)

    def open(self, now: float, source: PeerId, host: str, target: PeerId) -> Circuit:
        """Open the account of a circuit. Refused if `target` has no reservation, or there are too many circuits."""
        asks = End(source, host)
        self._count_request(now, asks)
        self._expire(now)
        if target not in self._reserved:
            raise Refused(Status.NO_RESERVATION)
        circuit = Circuit(self, now, asks, End(target, self._reserved[target][1]))
        alike = sum(each.source.peer == source and each.target.peer == target for each in self._circuits)
        if source == target or alike >= self.limits.circuits_of_pair:
            raise Refused(Status.RESOURCE_LIMIT_EXCEEDED)
        self._make_room(circuit)
        self._circuits[circuit] = None
        return circuit

    def spend(self, now: float, circuit: Circuit, size: int) -> float:
        """Count bytes that a circuit carries; returns the seconds until all rates allow the next."""
        self.carried += size
        rates = [self._rates[_kind(each)].of(each) for each in circuit.accounts if _kind(each) in self._rates]
        return max(rate.owe(now, size) for rate in [self._rate, *rates])

    def close(self, circuit: Circuit) -> None:
        """A circuit has ended."""
        self._circuits.pop(circuit, None)

    def _make_room(self, new: Circuit) -> None:
        """Close circuits so that there is room for a new one in all of its accounts; or Refused, closing none."""
        to_close: list[Circuit] = []
        for place in new.places:
            there = [each for each in self._circuits if place in each.places and each not in to_close]
            if len(there) >= self._most[_kind(place[1])]:
                to_close.append(_circuit_to_close(there, new))
        for each in to_close:
            each.close()
            each.cut()

    def _count_request(self, now: float, end: End) -> None:
        for account in end.accounts:
            if (asked := self._requests.get(_kind(account))) and not asked.of(account).take(now):
                raise Refused(Status.RESOURCE_LIMIT_EXCEEDED)

    def _expire(self, now: float) -> None:
        for peer in [peer for peer, (until, _) in self._reserved.items() if until <= now]:
            del self._reserved[peer]


def _circuit_to_close(rivals: Sequence[Circuit], new: Circuit) -> Circuit:
    """The idlest circuit of the host that has opened most of these; Refused unless the new one's host has fewer."""
    opened = Counter(each.source.host for each in rivals)
    biggest, count = max(opened.items(), key=lambda item: item[1], default=("", 0))
    if count < opened[new.source.host] + 2:
        raise Refused(Status.RESOURCE_LIMIT_EXCEEDED)
    return min((each for each in rivals if each.source.host == biggest), key=lambda each: each.used_at)


def _kind(account: str) -> str:
    return account.partition(" ")[0]


def _network_of(host: str) -> str:
    """The network of a host, as one owner often has it: a /24 of IPv4, or a /48 of IPv6."""
    try:
        address = ip_interface(host)
    except ValueError:  # the connection had ended before its address was read
        return host
    return str(ip_interface(f"{address.ip}/{24 if address.version == 4 else 48}").network)
