"""Whether and where others can dial us: a few peers try it and tell us, and we do the same for others.

    asker                                       the peer that is asked
    TryMe(its addresses)                  ->    dials anew, and sees by the handshake who answers
                                          <-    Reached(the addresses at which the asker answered)

Rules for the asker:
- Some connected peers of each realm (a scope and an IP version) are asked: at the start, when our addresses change, and
  from time to time. A peer that is connected by one IP version can say nothing about the other. `renew` makes us ask
  again; earlier answers count until there are new ones. A peer that does not answer is not asked again for a while, and
  others are asked in its place.
- An address counts as confirmed if more peers of its realm found us there than found us nowhere in the realm. An
  address that we did not know of (the outer one of a forwarded port) needs at least two. So one liar can neither hide
  nor invent us. A peer that found us at another address of the realm does not count against this one: it dials the
  hosts by which it is connected, and half of the peers may know one address of our machine, half another.
- A peer that has dialled us by itself has found us there, whatever its later tries say.
- We serve in the DHT while any address is confirmed, and not otherwise, however few servers there are: each peer that
  asks a server behind a router takes one of its relay's few circuits, which are for runs.
- Only an internet address makes us `public`; an IPv6 address alone does so only where nobody is connected by IPv4, as
  most others can dial IPv4 only.

Rules for the asked peer, so that nobody scans or floods others through us: we dial only the hosts that the asker is
connected from, at the ports that it names. So the asker learns nothing about anybody else, and no loopback or LAN
address is dialled for a peer that is not there. There are few dials per question; questions are rate-limited, per asker
and in total.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from shoal.dht.scope import Scope, scope_of
from shoal.protocol.base.allowance import Allowance, Allowances
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.multiaddrs import host_and_port, is_relayed, place_of

OPINIONS = 3  # wanted in each realm
ASK_AGAIN = 1800.0  # seconds until an opinion is too old
RETRY = 60.0  # seconds until a peer that did not answer is asked again
MAX_ASKED = 256  # peers whose answers, or silence, we remember
MIN_WITNESSES = 2  # peers that must have found us at an address that we did not know of

PORTS, HOSTS = 2, 2  # dialled for one question
PER_ASKER_RATE = (4, 1 / 30)  # questions in a burst, and per second
TOTAL_RATE = (16, 1.0)
MAX_ASKERS = 4096  # peers whose rate is remembered


class Realm(NamedTuple):
    """The peers that can dial an address: those within a scope, by a version of IP."""

    scope: Scope
    version: int


REALMS = tuple(Realm(scope, version) for scope in Scope for version in (4, 6))
INTERNET_V4 = Realm(Scope.INTERNET, 4)


def realm_of(address: str) -> Realm | None:
    """The realm of a multiaddr; None if nobody can dial it without a relay or a name lookup."""
    scope, where = scope_of(address), host_and_port(address)
    return Realm(scope, where[0].version) if scope is not None and where is not None else None


def realm_between(addresses: Iterable[str]) -> Realm:
    """The narrowest realm among a peer's connections, which lead to `addresses`."""
    return min((realm for address in addresses if (realm := realm_of(address)) is not None), default=INTERNET_V4)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The addresses at which we can be reached, widest scope first, and the word for it in `status`."""

    addresses: tuple[str, ...] = ()
    reachability: str = "unknown"  # "public" | "nat" | "unknown"

    @property
    def serves(self) -> bool:
        """Whether others may count on reaching us."""
        return bool(self.addresses)


@dataclass(frozen=True, slots=True)
class Opinion:
    """The answer of one peer."""

    realm: Realm  # of our connection with it
    reached: tuple[str, ...]
    until: float


class Reachability:
    """The asker's side: whom to ask, and what follows from the answers."""

    def __init__(self) -> None:
        self._own: tuple[str, ...] = ()
        self._opinions: dict[PeerId, Opinion] = {}
        self._asked: set[PeerId] = set()  # peers that have not answered yet
        self._silent: dict[PeerId, float] = {}  # peers that did not answer, and until when they are not asked again
        self._old: set[PeerId] = set()  # peers whose opinion counts only until there is a newer one

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """Set the addresses at which we listen. If they have changed, earlier answers are dropped."""
        own = tuple(place_of(address) for address in addresses)
        if own != self._own:
            self._own, self._opinions, self._silent = own, {}, {}

    def renew(self) -> None:
        """Ask peers again, the same or others."""
        self._old = set(self._opinions)

    def whom_to_ask(self, now: float, linked: Iterable[tuple[PeerId, Realm]]) -> list[PeerId]:
        """The connected peers to ask now."""
        self._opinions = {peer: each for peer, each in self._opinions.items() if each.until > now}
        self._silent = {peer: until for peer, until in self._silent.items() if until > now}
        self._old.intersection_update(self._opinions)
        fresh = {peer: each for peer, each in self._opinions.items() if peer not in self._old}
        said = Counter(each.realm for each in fresh.values())
        wanted = {realm: OPINIONS - said[realm] for realm in REALMS}
        known = len(self._opinions) + len(self._silent)
        chosen: list[PeerId] = []
        for peer, realm in linked:
            is_free = peer not in fresh and peer not in self._silent
            if wanted[realm] > 0 and is_free and known + len(chosen) < MAX_ASKED:
                wanted[realm] -= 1
                chosen.append(peer)
        self._asked.update(chosen)
        return chosen

    @property
    def is_settled(self) -> bool:
        """Whether no answer is outstanding."""
        return not self._asked

    def answered(self, now: float, peer: PeerId, realm: Realm, reached: Sequence[str]) -> None:
        """Take a peer's answer: where it reached us. Addresses with a port that is not ours are dropped."""
        ours = {where[1] for own in self._own if (where := host_and_port(own)) is not None}
        plausible = [each for each in reached if (where := host_and_port(each)) is not None and where[1] in ours]
        self._asked.discard(peer)
        self._old.discard(peer)
        self._silent.pop(peer, None)
        self._opinions[peer] = Opinion(realm, tuple(dict.fromkeys(plausible))[: HOSTS * PORTS], now + ASK_AGAIN)
        self._drop_outdated(realm)

    def dialled_us(self, peer: PeerId, at: Sequence[str]) -> None:
        """Note that a peer that was asked has dialled us by itself at these addresses of ours."""
        known = self._opinions.get(peer)
        if known is not None and not set(at) <= set(known.reached):
            self._opinions[peer] = replace(known, reached=tuple(dict.fromkeys((*at, *known.reached))))

    def failed(self, now: float, peer: PeerId, realm: Realm) -> None:
        """Note that a peer did not answer; its earlier answer counts until others have answered."""
        self._asked.discard(peer)
        self._silent[peer] = now + RETRY
        self._drop_outdated(realm)

    def verdict(self) -> Verdict:
        """Where we can be reached, by all answers."""
        said = {realm: self._said(realm) for realm in REALMS}
        named = dict.fromkeys(each for realm in REALMS for reached in said[realm] for each in reached)
        confirmed = [address for address in named if self._is_confirmed(address)]
        confirmed.sort(key=lambda address: -(scope_of(address) or Scope.LOOPBACK))
        realms = {realm_of(address) for address in confirmed}
        if INTERNET_V4 in realms or (Realm(Scope.INTERNET, 6) in realms and not said[INTERNET_V4]):
            return Verdict(tuple(confirmed), "public")
        in_vain = any(said[realm] for realm in REALMS if realm.scope is Scope.INTERNET or not confirmed)
        return Verdict(tuple(confirmed), "nat" if in_vain else "unknown")

    def _drop_outdated(self, realm: Realm) -> None:
        """Drop old answers of a realm that has new ones, except those of peers that are being asked again."""
        there = {peer for peer, each in self._opinions.items() if each.realm == realm}
        if there - self._old:
            outdated = there & self._old - self._asked
            self._opinions = {peer: each for peer, each in self._opinions.items() if peer not in outdated}

    def _said(self, realm: Realm) -> list[tuple[str, ...]]:
        return [each.reached for each in self._opinions.values() if each.realm == realm]

    def _is_confirmed(self, address: str) -> bool:
        realm = realm_of(address)
        said = self._said(realm) if realm is not None else []
        found = sum(address in reached for reached in said)
        in_vain = sum(all(realm_of(each) != realm for each in reached) for reached in said)
        return found > in_vain and (address in self._own or found >= MIN_WITNESSES)


class DialBackLimits:
    """The asked peer's side: limits the rate of questions."""

    def __init__(self) -> None:
        self._per_asker = Allowances[PeerId](*PER_ASKER_RATE, MAX_ASKERS)
        self._in_all = Allowance(*TOTAL_RATE)

    def allows(self, now: float, asker: PeerId) -> bool:
        """Whether a question of `asker` is to be answered now."""
        return self._per_asker.of(asker).take(now) and self._in_all.take(now)


def to_dial(named: Sequence[str], connected_from: Sequence[str]) -> list[str]:
    """The addresses to dial for an asker: the hosts that it is connected from, at the ports that it names."""
    ports = dict.fromkeys(where[1] for each in named if (where := host_and_port(each)) is not None)
    direct = [each for each in connected_from if not is_relayed(each)]  # else it would be the relay's host
    hosts = dict.fromkeys(where[0] for each in direct if (where := host_and_port(each)) is not None)
    return [
        f"/ip{host.version}/{host}/tcp/{port}"
        for host in [host for host in hosts if not host.is_unspecified][:HOSTS]
        for port in list(ports)[:PORTS]
    ]
