"""The member table: who is in the run, and which of two entries is later. It sets no timers and sends no messages.

Rules:
- The later of two entries of a member has the higher (incarnation, version); only the member itself makes entries.
- A claim (suspect, dead) is about one incarnation. A higher incarnation refutes it; a higher version does not.
- A member that left stays gone until its next incarnation, and no claim about it matters.
- Members that are dead or have left are kept, up to a bound, so that stale gossip does not revive them.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from shoal.protocol.base.effects import Event
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.membership import Entry, Row

MAX_MEMBERS = 10_000
MAX_TOMBSTONES = 1_000  # dead members and those that left
NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class PeerUp(Event):
    """A member is alive: new, back, cleared of a suspicion, or at new addresses."""

    peer: PeerId
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PeerSuspected(Event):
    """A member does not answer; it has a short time to refute that."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class PeerDown(Event):
    """A member is dead, as far as we can know."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class PeerLeft(Event):
    """A member said goodbye."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class StatusChanged(Event):
    """A present member has a new status."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class NamesakeSeen(Event):
    """Entries in our name that we did not make keep coming: another node has our key."""


class State(Enum):
    """What we believe of a member."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"
    LEFT = "left"


PRESENT = (State.ALIVE, State.SUSPECT)


def _round_trip() -> Estimate:
    # An event loop on a busy machine may stall for a few 100 ms: the floor must not mistake that for a death.
    return Estimate(initial=1.0, floor=0.5, ceiling=3.0)


@dataclass(slots=True)
class Member:
    """What we hold of one other member."""

    entry: Entry
    state: State
    since: float  # when it entered this state
    round_trip: Estimate = field(default_factory=_round_trip)
    fastest: float = math.inf  # shortest round trip ever seen, without stalls
    probed_at: float = NEVER  # the last probe between us, in either direction
    retry_at: float = NEVER  # of a dead member: when to try again, and the pause after that
    retry_pause: float = 0.0

    def observe(self, round_trip: float) -> None:
        """Learn from an answer."""
        self.round_trip.observe(round_trip)
        self.fastest = min(self.fastest, round_trip)

    @property
    def is_present(self) -> bool:
        """Alive, or not yet known to be dead."""
        return self.state in PRESENT


def age(entry: Entry) -> tuple[int, int]:
    """The order of the entries of one member: the greatest is the latest."""
    return entry.incarnation, entry.version


class MemberTable:
    """Every other member, by PeerID, and our own entry."""

    def __init__(self, own: Entry, limit: int = MAX_MEMBERS, tombstones: int = MAX_TOMBSTONES) -> None:
        self.own = own
        self._limit = limit
        self._tombstones = tombstones
        self._members: dict[PeerId, Member] = {}
        self._present: list[PeerId] = []  # sorted

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def get(self, peer: PeerId) -> Member | None:
        """Another member, if we know it."""
        return self._members.get(peer)

    def present(self) -> list[PeerId]:
        """Members that are alive or suspect, sorted. Callers must not change the list."""
        return self._present

    def outdates(self, entry: Entry) -> bool:
        """Whether we hold a later entry than `entry`, or another of that version, which its author has forgotten."""
        member = self._members.get(entry.peer)
        if member is None or age(member.entry) < age(entry):
            return False
        return member.entry.signature != entry.signature

    def incarnation(self, peer: PeerId) -> int | None:
        """The latest known incarnation of `peer`, which may be ourselves."""
        if peer == self.own.peer:
            return self.own.incarnation
        member = self._members.get(peer)
        return None if member is None else member.entry.incarnation

    def slowest_round_trip(self) -> float:
        """The longest of the members' fastest round trips: a guess for one that never answered; inf if none did."""
        seen = [member.fastest for member in self._members.values() if member.round_trip.samples]
        return max(seen, default=math.inf)

    def rows(self) -> tuple[Row, ...]:
        """The table in outline."""
        return tuple(
            [
                Row(peer, member.entry.incarnation, member.entry.version, member.state is State.DEAD)
                for peer, member in self._members.items()
            ]
        )

    def is_later(self, entry: Entry) -> bool:
        """Whether `entry` is later than what we hold of its author."""
        if entry.peer == self.own.peer:  # an unknown one is from an earlier life of ours
            return age(entry) >= age(self.own) and entry.signature != self.own.signature
        member = self._members.get(entry.peer)
        return member is None or age(entry) > age(member.entry)

    def adopt(self, now: float, entry: Entry, *, dead: bool = False) -> Event | None:
        """Take over a later entry of another member. `dead`: a member that is new to us is entered as dead."""
        member = self._members.get(entry.peer)
        if member is None:
            return self._insert(now, entry, dead)
        refutes = entry.incarnation > member.entry.incarnation or member.entry.left  # that of a later process
        moved = entry.addresses != member.entry.addresses
        member.entry = entry
        if entry.left:
            return PeerLeft(entry.peer) if self._move(now, member, State.LEFT) in PRESENT else None
        if refutes and member.state is not State.ALIVE:
            self._move(now, member, State.ALIVE)
            return PeerUp(entry.peer, entry.addresses)
        if moved and member.state is State.ALIVE:  # perhaps a process that died unnoticed is back on another port
            return PeerUp(entry.peer, entry.addresses)
        return StatusChanged(entry.peer) if member.is_present else None

    def suspect(self, now: float, peer: PeerId) -> Event | None:
        """Suspect a living member."""
        member = self._members[peer]
        if member.state is not State.ALIVE:
            return None
        self._move(now, member, State.SUSPECT)
        return PeerSuspected(peer)

    def trust(self, now: float, peer: PeerId) -> Event | None:
        """Clear a suspicion of which nobody else was told."""
        member = self._members[peer]
        if member.state is not State.SUSPECT:
            return None
        self._move(now, member, State.ALIVE)
        return PeerUp(peer, member.entry.addresses)

    def declare_dead(self, now: float, peer: PeerId) -> Event | None:
        """Declare a present member dead."""
        member = self._members[peer]
        if not member.is_present:
            return None
        self._move(now, member, State.DEAD)
        return PeerDown(peer)

    def _insert(self, now: float, entry: Entry, dead: bool) -> Event | None:
        if len(self._members) >= self._limit and not self._evict():
            return None
        state = State.LEFT if entry.left else State.DEAD if dead else State.ALIVE
        member = self._members[entry.peer] = Member(entry, state, now)
        if not member.is_present:
            self._bound_tombstones()
            return None
        insort(self._present, entry.peer)
        return PeerUp(entry.peer, entry.addresses)

    def _move(self, now: float, member: Member, state: State) -> State:
        before, member.state, member.since = member.state, state, now
        was, is_now = before in PRESENT, state in PRESENT
        if was and not is_now:
            self._present.remove(member.entry.peer)
            member.retry_at, member.retry_pause = NEVER, 0.0
            self._bound_tombstones()
        elif is_now and not was:
            insort(self._present, member.entry.peer)
        return before

    def _bound_tombstones(self) -> None:
        if len(self._members) - len(self._present) > self._tombstones:
            self._evict()

    def _evict(self) -> bool:
        """Remove the member that has been dead or gone for longest; False if there is none."""
        gone = [member for member in self._members.values() if not member.is_present]
        if not gone:
            return False
        del self._members[min(gone, key=lambda member: member.since).entry.peer]
        return True
