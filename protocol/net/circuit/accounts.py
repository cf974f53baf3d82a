"""The accounts of a relay: reservations, circuits and rates, with all limits; no bytes pass here.

Rules:
- A reservation lets others be connected with its holder. It ends when it is not renewed in time, or its holder is gone.
  When all are taken, nobody new gets one; one host (behind a router there may be several peers), and one network, get
  only some.
- A circuit counts for both of its ends: for the peer, its host, and its network, as names cost nothing. Each has a
  bounded number that it has opened, and as many that others have opened to it, so that being called keeps nobody from
  calling; and few with the same other end. Peers and hosts have a rate that all of their circuits share, and all
  circuits together have another. A peer that exceeds a rate is read more slowly.
- When all places are taken, of the relay or of any of these accounts, the idlest circuit of the host that has opened
  most of them yields to a host that has opened fewer: so filling a relay keeps nobody else from it.
- A circuit ends when it has carried its share of bytes, its time is over, or it was silent for long. Its ends may open
  another.
- Requests are counted, too: a peer that asks without end, under one name or many, is refused at once.
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
    questions: tuple[float, float] = (32, 2.0)
    questions_of_host: tuple[float, float] = (128, 8.0)
    peers: int = 1024  # whose rates are remembered, and as many hosts


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class End:
    """One end of a circuit: a peer, and the host from which it is connected."""

    peer: PeerId
    host: str

    @property
    def accounts(self) -> tuple[str, str, str]:
        """Of the peer, its host and its network."""
        return f"peer {self.peer}", f"host {self.host}", f"network {_network_of(self.host)}"


class Circuit:
    """One circuit's account. `cut` is called when it must yield to another, and is closed already."""

    def __init__(self, accounts: RelayAccounts, now: float, source: End, target: End) -> None:
        limits = accounts.limits
        self.source, self.target = source, target
        self.accounts = tuple(dict.fromkeys(source.accounts + target.accounts))  # those that both share pay once
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
        """When it is over, unless something is said on it."""
        return min(self._until, self.used_at + self._idles)

    def carry(self, now: float, size: int) -> float:
        """So many bytes are to be passed on: seconds to wait before the next. Refused if its share is used up."""
        self._left -= size
        if self._left < 0 or now >= self._until:
            raise Refused(Status.RESOURCE_LIMIT_EXCEEDED)
        self.used_at = now
        return self._accounts.spend(now, self, size)

    def close(self) -> None:
        """It is over; may be called again."""
        self._accounts.close(self)


class RelayAccounts:
    """A relay's accounts."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self._reserved: dict[PeerId, tuple[float, str]] = {}  # until when, and from which host
        self._circuits: dict[Circuit, None] = {}  # the oldest first
        self._most = {
            "peer": limits.circuits_of_peer,
            "host": limits.circuits_of_host,
            "network": limits.circuits_of_network,
            "all": limits.circuits,
        }
        self._questions = {
            "peer": Allowances[str](*limits.questions, limits.peers),
            "host": Allowances[str](*limits.questions_of_host, limits.peers),
        }
        self._rates = {
            "peer": Allowances[str](*limits.rate_of_peer, limits.peers),
            "host": Allowances[str](*limits.rate_of_host, limits.peers),
        }
        self._rate = Allowance(*limits.rate_in_all)
        self.carried = 0  # bytes in all

    def reservations(self, now: float) -> int:
        """How many there are."""
        self._expire(now)
        return len(self._reserved)

    @property
    def circuits(self) -> int:
        """How many there are."""
        return len(self._circuits)

    @property
    def given(self) -> dict[str, int]:
        """What others have of us, for people to read; from any thread."""
        return {"reservations": len(self._reserved), "circuits": len(self._circuits), "carried_bytes": self.carried}

    @property
    def users(self) -> set[PeerId]:
        """Who would lose something if we hung up; from any thread."""
        ends = {each.peer for circuit in list(self._circuits) for each in (circuit.source, circuit.target)}
        return ends | set(list(self._reserved))

    def reserve(self, now: float, peer: PeerId, host: str) -> float:
        """Promise `peer`, connected from `host`, to connect others with it; until when. Refused if there is no room."""
        self._ask(now, End(peer, host))
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
        """Those who have reservations, or had."""
        return list(self._reserved)

    def release(self, peer: PeerId) -> None:
        """It is gone, and its reservation with it."""
        self._reserved.pop(peer, None)

    def open(self, now: float, source: PeerId, host: str, target: PeerId) -> Circuit:
        """Account for a circuit between the two. Refused if `target` has no reservation, or there are too many."""
        asks = End(source, host)
        self._ask(now, asks)
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
        """Bytes that a circuit carries: the seconds until all rates allow the next."""
        self.carried += size
        rates = [self._rates[_kind(each)].of(each) for each in circuit.accounts if _kind(each) in self._rates]
        return max(rate.owe(now, size) for rate in [self._rate, *rates])

    def close(self, circuit: Circuit) -> None:
        """A circuit has ended."""
        self._circuits.pop(circuit, None)

    def _make_room(self, new: Circuit) -> None:
        """For one more at each of its places. Refused before anybody has yielded."""
        yielding: list[Circuit] = []
        for place in new.places:
            there = [each for each in self._circuits if place in each.places and each not in yielding]
            if len(there) >= self._most[_kind(place[1])]:
                yielding.append(_who_yields(there, new))
        for each in yielding:
            each.close()
            each.cut()

    def _ask(self, now: float, end: End) -> None:
        for account in end.accounts:
            if (asked := self._questions.get(_kind(account))) and not asked.of(account).take(now):
                raise Refused(Status.RESOURCE_LIMIT_EXCEEDED)

    def _expire(self, now: float) -> None:
        for peer in [peer for peer, (until, _) in self._reserved.items() if until <= now]:
            del self._reserved[peer]


def _who_yields(rivals: Sequence[Circuit], new: Circuit) -> Circuit:
    """The idlest of the host that has opened most of these; Refused if it would have fewer than the new one's."""
    opened = Counter(each.source.host for each in rivals)
    biggest, count = max(opened.items(), key=lambda item: item[1], default=("", 0))
    if count < opened[new.source.host] + 2:
        raise Refused(Status.RESOURCE_LIMIT_EXCEEDED)
    return min((each for each in rivals if each.source.host == biggest), key=lambda each: each.used_at)


def _kind(account: str) -> str:
    return account.partition(" ")[0]


def _network_of(host: str) -> str:
    """What one owner often has: 256 addresses of IPv4, 65,536 networks of /64 of IPv6, which `host` is one of."""
    try:
        address = ip_interface(host)
    except ValueError:  # it was gone before we could look
        return host
    return str(ip_interface(f"{address.ip}/{24 if address.version == 4 else 48}").network)
