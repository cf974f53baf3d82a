"""The contract between cores and shells: a core takes inputs and returns effects.

Rules for every core:
- It imports no I/O, clock, task, thread, randomness or torch. `now` (seconds, any origin, monotonic) comes
  with each input; a `random.Random` comes with the constructor.
- It never iterates over a set: the same inputs give the same effects, whatever PYTHONHASHSEED is.
- Timers are never cancelled. A timer that no longer matters is recognised by its token and ignored.
- A bad message raises RemoteError before any state has changed.
- Effects are plain data: no function is in them, so nothing in another thread looks at a core's state. What a shell
  does later, in its threads, it does with the effect and with what the application has.
- The shell reports when a bulk message of a `Send` has left this node or was dropped; for other messages it does not.
- Effects are carried out in order; `Persist` is on disk before the next effect leaves. Large records are an exception:
  those of "means" are written, not forced, before the messages with the same bytes and later records, and those of
  "result" hold back nothing. Other effects may pass both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer that a core has set. `core` routes it; `token` distinguishes a live timer from a stale one."""

    core: str
    name: str
    token: int
    subject: str = ""


class Event:
    """Base of the events that a core tells its application; each core defines its own."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Blamed(Event):
    """A peer sent something bad and was left out, or ignored."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class Send:
    """Deliver `message` to `to`; it may be lost, repeated or delayed, and the core must cope with that.

    With `is_late` the payload of a bulk message is empty, and the application makes it when its turn comes, in any
    thread: until then nothing is encoded and no memory is held.
    """

    to: PeerId
    message: Message
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Contributions to `round` of `part` whose late payloads have not left yet are of no use any more.

    They count as dropped, and what they are made from may change from now on. Those that are sent later are not meant.
    """

    part: int
    round: int


@dataclass(frozen=True, slots=True)
class Wake:
    """Call `fire(timer)` once, `after` seconds from now."""

    after: float
    timer: Timer


@dataclass(frozen=True, slots=True)
class Tell:
    """Hand `event` to the application."""

    event: Event


@dataclass(frozen=True, slots=True)
class Persist:
    """Write `record` under `name` so that it survives a crash, before any later effect that the rules above name."""

    name: str
    record: Message


Effect = Send | Withdraw | Wake | Tell | Persist


class Machine(Protocol):
    """A protocol core. Its commands are further methods that take `now` and return effects."""

    def receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]: ...

    def fire(self, now: float, timer: Timer) -> list[Effect]: ...
