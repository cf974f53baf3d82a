"""The routing table: servers that answered us, in k-buckets by their distance from us.

Rules:
- A server enters only after it has answered us, with the addresses that it gave itself; what others say of it is not
  believed.
- A server in the table stays while it is alive: a node that has been up for long is likely to stay up, and a flood of
  newcomers removes nobody. Newcomers to a full bucket wait in line, the freshest first.
- Two silences in a row remove a contact, unless nobody else has been heard since the first: then we are cut off
  ourselves. After one silence it is not named to others.
- A bucket takes a bounded number of contacts per prefix of addresses, waiting line included: one rented machine can run
  many nodes, but all have addresses from a few prefixes. Addresses of this machine and of local networks are exempt, as
  an attacker who is there needs no sybils. All addresses that are not IP addresses count as one prefix.

Kademlia (Maymounkov and Mazieres 2002), sections 2.2 and 4.1.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf

from shoal.dht.keys import BITS, K, node_id
from shoal.dht.scope import Scope, scope_of
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.multiaddrs import host_and_port
from shoal.protocol.messages.dht import Contact

NARROW = {4: 24, 6: 64}  # bits: about one customer's addresses
WIDE = {4: 16, 6: 48}  # bits: about one provider's addresses at one place
CACHED = 16_384  # addresses whose prefixes are remembered

Prefixes = tuple[tuple[str, ...], tuple[str, ...]]
"""The narrow prefixes of a contact's addresses, and the wide ones."""
WAITING = 5  # newcomers in line for a full bucket
PER_NARROW, PER_WIDE = 5, 10  # contacts of a bucket in one /24, in one /16
SILENCES = 2  # in a row, that remove a contact
FRESH = 2400.0  # seconds for which a contact counts as alive after an answer, and a bucket as complete after a refresh
UNANSWERED = 600.0  # seconds for which a peer that did not answer is not tried because others name it
MAX_UNANSWERED = 512  # such peers that are remembered
YOUNG = 60.0  # seconds between refreshes while we know fewer than K servers


def prefixes(contact: Contact) -> Prefixes:
    """The narrow and the wide prefixes of a contact's addresses on the internet, each once."""
    return _of(contact.addresses)


@lru_cache(CACHED)
def _of(addresses: tuple[str, ...]) -> Prefixes:
    pairs = [_prefixes(each) for each in addresses if scope_of(each) not in (Scope.LOOPBACK, Scope.LAN)]
    return tuple(dict.fromkeys(pair[0] for pair in pairs)), tuple(dict.fromkeys(pair[1] for pair in pairs))


def _prefixes(address: str) -> tuple[str, str]:
    where = host_and_port(address)
    if where is None:
        return "", ""
    host = where[0]
    narrow, wide = (ipaddress.ip_network((host, length[host.version]), strict=False) for length in (NARROW, WIDE))
    return str(narrow), str(wide)


@dataclass(slots=True)
class Known:
    """A server in the table."""

    contact: Contact
    id: int
    prefixes: Prefixes
    seen: float
    silences: int = 0
    silent_since: float = 0.0


@dataclass(slots=True)
class Bucket:
    """Servers whose distance from us has the same highest bit; those that entered first come first."""

    members: list[Known] = field(default_factory=list)
    waiting: list[Known] = field(default_factory=list)
    refreshed: float = 0.0
    is_settled: bool = False  # since its last refresh nobody has named a server that we lacked here

    @property
    def is_full(self) -> bool:
        return len(self.members) >= K

    @property
    def is_in_use(self) -> bool:
        """Whether it has members, or a server that may belong to it was named recently."""
        return bool(self.members) or not self.is_settled

    def has_room_for(self, contact: Contact) -> bool:
        """Whether the prefixes of this contact's addresses allow one more."""
        narrow, wide = prefixes(contact)
        if not narrow:
            return True
        others = [known.prefixes for known in (*self.members, *self.waiting)]
        narrow_ones = [prefix for other in others for prefix in other[0]]
        wide_ones = [prefix for other in others for prefix in other[1]]
        crowded = any(narrow_ones.count(prefix) >= PER_NARROW for prefix in narrow)
        return not crowded and not any(wide_ones.count(prefix) >= PER_WIDE for prefix in wide)


class Table:
    """The servers that we know."""

    def __init__(self, me: PeerId) -> None:
        self._peer = me
        self._me = node_id(me)
        self._buckets: dict[int, Bucket] = {}
        self._known: OrderedDict[PeerId, Known] = OrderedDict()  # the one heard least recently first
        self._silent: dict[PeerId, Known] = {}
        self._unanswered: OrderedDict[PeerId, float] = OrderedDict()  # when one did not answer, or did not serve
        self._heard = 0.0

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._known

    def known(self) -> list[Known]:
        """All servers in the table, without those that wait in line."""
        return list(self._known.values())

    def buckets(self) -> list[tuple[int, Bucket]]:
        """Each bucket in use, with the number of bits of its distances, the farthest first."""
        return sorted(((bits, bucket) for bits, bucket in self._buckets.items() if bucket.is_in_use), reverse=True)

    # -- changes ------------------------------------------------------------------------------------------

    def wants(self, now: float, contact: Contact) -> bool:
        """Whether `contact` would enter at once if it answered us, and has not left us without an answer recently."""
        if (
            contact.peer in self._known
            or contact.peer == self._peer
            or now - self._unanswered.get(contact.peer, -UNANSWERED) < UNANSWERED
        ):
            return False
        bucket = self._buckets.get(self._bits(contact.peer))
        return bucket is None or (not bucket.is_full and bucket.has_room_for(contact))

    def note_missing(self, now: float, named: Sequence[Contact]) -> list[Contact]:
        """The named contacts that we lack and would take in; their buckets count as incomplete from now on."""
        wanted = [contact for contact in named if self.wants(now, contact)]
        for contact in wanted:
            self._buckets.setdefault(self._bits(contact.peer), Bucket()).is_settled = False
        return wanted

    def add(self, now: float, contact: Contact) -> bool:
        """Take in `contact`, which has answered us and serves; returns whether it is new in the table."""
        if contact.peer == self._peer:
            return False
        known = self._known.get(contact.peer)
        bucket = self._buckets.setdefault(self._bits(contact.peer), Bucket())
        if known is not None:
            self._update(now, bucket, known, contact)
            return False
        newcomer = Known(contact, node_id(contact.peer), prefixes(contact), now)
        self._heard = now
        bucket.waiting = [other for other in bucket.waiting if other.contact.peer != contact.peer]
        if not bucket.has_room_for(contact):
            return False
        bucket.waiting = [newcomer, *bucket.waiting][:WAITING]
        return self._let_in(bucket) is newcomer

    def _update(self, now: float, bucket: Bucket, known: Known, contact: Contact) -> None:
        """Note the addresses that a contact gives; it is removed if it has moved to a prefix that is full."""
        known.contact, before, known.prefixes = contact, known.prefixes, ((), ())
        if before != prefixes(contact) and not bucket.has_room_for(contact):
            self.forget(now, contact.peer)
            return
        known.prefixes = prefixes(contact)
        self.heard(now, contact.peer)

    def heard(self, now: float, peer: PeerId) -> None:
        """Note that `peer` has answered us."""
        self._heard = now
        self._unanswered.pop(peer, None)
        known = self._known.get(peer)
        if known is not None:
            known.seen, known.silences = now, 0
            self._known.move_to_end(peer)
            self._silent.pop(peer, None)

    def silent(self, now: float, peer: PeerId) -> None:
        """Note that `peer` has not answered us."""
        known = self._known.get(peer)
        if known is None:
            self._note_unanswered(now, peer)
            return
        known.silent_since = known.silent_since if known.silences else now
        known.silences += 1
        self._silent[peer] = known
        if known.silences >= SILENCES and self._heard > known.silent_since:
            self.forget(now, peer)

    def forget(self, now: float, peer: PeerId) -> None:
        """Remove `peer`: it is gone, serves no more, or is not to be trusted."""
        self._note_unanswered(now, peer)
        bucket = self._buckets.get(self._bits(peer))
        if bucket is None:
            return
        bucket.waiting = [known for known in bucket.waiting if known.contact.peer != peer]
        if peer in self._known:
            self._remove(bucket, self._known[peer])
            self._let_in(bucket)

    def _note_unanswered(self, now: float, peer: PeerId) -> None:
        self._unanswered[peer] = now
        self._unanswered.move_to_end(peer)
        if len(self._unanswered) > MAX_UNANSWERED:
            self._unanswered.popitem(last=False)

    def _remove(self, bucket: Bucket, known: Known) -> None:
        bucket.members.remove(known)
        del self._known[known.contact.peer]
        self._silent.pop(known.contact.peer, None)

    def _let_in(self, bucket: Bucket) -> Known | None:
        """Let the freshest waiting contact in, if there is room or a member has been silent."""
        if not bucket.waiting:
            return None
        if bucket.is_full:
            silent = next((known for known in bucket.members if known.silences), None)
            if silent is None:
                return None
            self._remove(bucket, silent)
        newcomer = bucket.waiting.pop(0)
        bucket.members.append(newcomer)
        self._known[newcomer.contact.peer] = newcomer
        return newcomer

    # -- questions ----------------------------------------------------------------------------------------

    def closest(self, target: int, count: int) -> list[Contact]:
        """The servers nearest to `target` that are not silent, nearest first; silent ones if there are no others."""
        found: list[Contact] = []
        for bucket in self._towards(target):
            near = [known for known in bucket.members if not known.silences]
            near.sort(key=lambda known: known.id ^ target)
            found += [known.contact for known in near]
            if len(found) >= count:
                return found[:count]
        return found or [known.contact for known in self._known.values()][:count]

    def is_complete(self, target: int, count: int, now: float) -> bool:
        """Whether we know all of the `count` servers nearest to `target`, and have heard each of them recently.

        A bucket that is not full is complete, if it has settled; a full one may lack servers.
        """
        found = 0
        for bucket in self._towards(target):
            if bucket.is_full or not bucket.is_settled or now - bucket.refreshed > 2 * self.refresh_pause(FRESH / 2):
                return False
            near = sorted(bucket.members, key=lambda known: known.id ^ target)[: count - found]
            if any(known.silences or now - known.seen > FRESH for known in near):
                return False
            found += len(near)
            if found >= count:
                return True
        return found > 0

    def refresh_pause(self, pause: float) -> float:
        """Seconds that a bucket may go without a refresh: `pause`, or less in a small network, which may grow."""
        return pause if len(self._known) >= K else min(pause, YOUNG)

    def rank(self, target: int, count: int) -> int:
        """How many of the `count` known servers nearest to `target` are nearer to it than we are."""
        mine = self._me ^ target
        return sum(node_id(contact.peer) ^ target < mine for contact in self.closest(target, count))

    def nearer_at_least(self, target: int) -> int:
        """A lower bound of how many known servers are nearer to `target` than we are: the size of its bucket."""
        bucket = self._buckets.get((self._me ^ target).bit_length())
        return len(bucket.members) if bucket else 0

    def stalest(self) -> Known | None:
        """The contact to check next: a silent one, or else the one not heard for longest."""
        for known in self._silent.values():
            return known
        return next(iter(self._known.values()), None)

    def population(self) -> float:
        """An estimate of how many servers there are, from their density around us."""
        near = self.closest(self._me, K)
        if len(near) < K:
            return float(len(self._known))
        return float(len(near) * (1 << BITS) / (node_id(near[-1].peer) ^ self._me))

    def expected(self, distance: int) -> float:
        """How many servers are expected within `distance` of a place; infinity while we know too few to say."""
        if len(self) < K:
            return inf
        return self.population() * distance / (1 << BITS)

    def _towards(self, target: int) -> Iterator[Bucket]:
        """Buckets in the order of their members' distance from `target`: no member of one lies between two of another.

        Where our distance from the target has a one, the bucket's members have a zero there, and are nearer than we;
        the higher that bit, the nearer. Where it has a zero they are farther; the lower the bit, the nearer.
        """
        ours = self._me ^ target
        order = sorted(self._buckets, key=lambda bits: -bits if ours >> (bits - 1) & 1 else bits + BITS)
        return (self._buckets[bits] for bits in order if self._buckets[bits].is_in_use)

    def _bits(self, peer: PeerId) -> int:
        return (node_id(peer) ^ self._me).bit_length()
