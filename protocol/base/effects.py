"""The contract between cores and shells: a core takes inputs and returns effects. The whole framework.

Rules for every core:
- It imports no I/O, clock, task, thread, randomness or torch. `now` (seconds, any origin, monotonic) comes
  with each input; a `random.Random` comes with the constructor.
- It never iterates over a set: the same inputs give the same effects, whatever PYTHONHASHSEED is.
- Timers are never cancelled. A timer that no longer matters is recognised by its token and ignored.
- A bad message raises RemoteError before any state has changed.
- The shell reports for each bulk message in a `Send` when it has left this node or was dropped; not for others.
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
    """A timer that a core has asked for. `core` routes it, `token` tells a live timer from a stale one."""

    core: str
    name: str
    token: int
    subject: str = ""


class Event:
    """Base of what a core tells its own application; each core defines its events beside itself."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Send:
    """Deliver `message` to `to`; it may be lost, repeated or late, and the core must cope.

    `fill` makes the payload of a bulk message when its turn comes, in any thread: until then nothing is encoded, and no
    memory held. Before that the shell calls `is_wanted`, in any thread as well; a message that is not wanted any more
    counts as dropped.
    """

    to: PeerId
    message: Message
    fill: Callable[[], Payload] | None = field(default=None, compare=False)
    is_wanted: Callable[[], bool] = field(default=lambda: True, compare=False)

    def filled(self) -> Message:
        """The message as it leaves."""
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
    """A protocol core. Commands are extra methods of the same shape: they take `now`, they return effects."""

    def receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]: ...

    def fire(self, now: float, timer: Timer) -> list[Effect]: ...
