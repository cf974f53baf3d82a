"""The contract between cores and shells: a core takes inputs and returns effects.

Rules for every core:
- It imports no I/O, clock, task, thread, randomness or torch. `now` (seconds, any origin, monotonic) comes
  with each input; a `random.Random` comes with the constructor.
- It never iterates over a set: the same inputs give the same effects, whatever PYTHONHASHSEED is.
- Timers are never cancelled. A timer that no longer matters is recognised by its token and ignored.
- A bad message raises RemoteError before any state has changed.
- The shell reports when a bulk message of a `Send` has left this node or was dropped; for other messages it does not.
- Effects are carried out in order; `Persist` is on disk before the next effect leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message, Payload


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
    """Deliver `message` to `to`; it may be lost, repeated or late, and the core must cope with that.

    `fill` makes the payload of a bulk message when its turn comes, in any thread: until then nothing is encoded and no
    memory is held. Before that the shell calls `is_wanted`, also in any thread; a message no longer wanted counts as
    dropped.
    """

    to: PeerId
    message: Message
    fill: Callable[[], Payload] | None = field(default=None, compare=False)
    is_wanted: Callable[[], bool] = field(default=lambda: True, compare=False)

    def filled(self) -> Message:
        """The message with its payload, as it is sent."""
        return self.message if self.fill is None else replace(self.message, payload=self.fill())  # type: ignore[type-var]


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
    """Write `record` under `name` so that it survives a crash, before any later effect is carried out."""

    name: str
    record: Message


Effect = Send | Wake | Tell | Persist


class Machine(Protocol):
    """A protocol core. Its commands are further methods that take `now` and return effects."""

    def receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]: ...

    def fire(self, now: float, timer: Timer) -> list[Effect]: ...
