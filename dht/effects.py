"""The effects and events of the DHT core, beside Wake and Tell of shoal.protocol.base.effects.

`now` of every input is in seconds of a clock that is never set and goes on while the machine sleeps. `Kademlia.wall`
has the difference to the wall clock, by which records expire (shoal.dht.clock); the shell keeps it up to date.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.protocol.base.effects import Event, Tell, Wake
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.dht import Contact, Record, StoreResult


@dataclass(frozen=True, slots=True)
class Call:
    """Call `to`. The shell calls `answered(now, number, answer)` or `failed(now, number)` once, however late.

    The core has deadlines of its own: it goes on without an answer that is late, and takes note when it comes.
    """

    number: int
    to: Contact
    message: Message


Effect = Call | Wake | Tell


@dataclass(frozen=True, slots=True)
class Found:
    """A record, and how many of the asked replicas gave this version of it."""

    record: Record
    replicas: int


@dataclass(frozen=True, slots=True)
class Got(Event):
    """The end of a get: the newest version of each entry, and the cost."""

    ticket: int
    found: tuple[Found, ...]
    answers: int  # replicas that were heard, with or without a record
    hops: int
    calls: int


@dataclass(frozen=True, slots=True)
class Put(Event):
    """The end of a put: `held` of the `wanted` servers hold the record."""

    ticket: int
    held: int
    wanted: int
    refusals: tuple[StoreResult, ...]  # distinct
    hops: int
    calls: int


@dataclass(frozen=True, slots=True)
class Blamed(Event):
    """A peer has sent something that no honest peer sends; the core has removed it from its table."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class ClockOff(Event):
    """By most others' clocks ours is `ahead` by so many seconds, or behind if that is negative."""

    ahead: int
