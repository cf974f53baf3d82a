"""Calls on their way: numbered, bounded, each with a deadline that is learned from the round trips seen so far.

Rules:
- Who asks is told once that a call failed: when patience ends, or when the shell says so, whichever is first.
- Patience with those that we are connected with, and with those that must be dialled first, is learned apart: a dial
  takes many times as long as a call over a connection that is there.
- An answer counts however late it comes: patience ends the waiting, not the call.
- At most IN_FLIGHT calls wait for an answer; others wait for their turn, in order. While MOST_QUEUED do, nothing joins
  them that others make us say: no greeting back, and no records to hand over, which go out again some day.
- An answer that its asker refuses (RemoteError) is a failure, and the one that gave it is blamed and forgotten. One
  that says that the peer is too busy for us is a failure too, but nobody's fault.
- What the parts of the core want done collects in `effects`; the core hands it out at the end of each input.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from shoal.dht.effects import Ask, Blamed, Effect
from shoal.dht.table import Table
from shoal.protocol.effects import Event, Tell, Timer
from shoal.protocol.errors import RemoteError
from shoal.protocol.estimate import Estimate
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.dht import Contact
from shoal.protocol.messages.node import Refused
from shoal.protocol.timers import Timers
from shoal.protocol.wire import Message

IN_FLIGHT = 64
MOST_QUEUED = 1024
FIRST_PATIENCE, LEAST_PATIENCE, MOST_PATIENCE = 1.0, 0.1, 3.0  # seconds


class Asker(Protocol):
    """Whoever has asked something."""

    def answered(self, now: float, contact: Contact, answer: Message) -> None:
        """The answer; RemoteError, before anything has changed, if it is not what an honest peer says."""
        ...

    def failed(self, now: float, contact: Contact) -> None:
        """No answer, or not yet."""
        ...


class Unheard:
    """Asks, and does not care for the answer."""

    def answered(self, now: float, contact: Contact, answer: Message) -> None:
        """Well."""

    def failed(self, now: float, contact: Contact) -> None:
        """So be it."""


UNHEARD = Unheard()


@dataclass(slots=True)
class Call:
    """One call."""

    to: Contact
    message: Message
    asker: Asker
    sent: float = 0.0
    is_linked: bool = False  # there was a connection when it was sent
    is_overdue: bool = False


class Calls:
    """All calls of one core, and what else it wants its shell to do."""

    def __init__(self, table: Table) -> None:
        self.effects: list[Effect] = []
        self._table = table
        self._timers = Timers("dht")
        self._linked: dict[PeerId, None] = {}
        self._round_trip = {is_linked: _patience() for is_linked in (False, True)}
        self._calls: dict[int, Call] = {}
        self._queue: deque[Call] = deque()
        self._number = 0
        self._waiting = 0  # calls out that are not overdue

    @property
    def made(self) -> int:
        """How many calls there have been."""
        return self._number

    @property
    def linked(self) -> list[PeerId]:
        """Who is connected."""
        return list(self._linked)

    @property
    def is_busy(self) -> bool:
        """Whether too many calls wait for their turn to take on some for others' sake."""
        return len(self._queue) >= MOST_QUEUED

    def drain(self) -> list[Effect]:
        """What is to be done since the last time."""
        effects, self.effects = self.effects, []
        return effects

    def tell(self, event: Event) -> None:
        """Tell the application."""
        self.effects.append(Tell(event))

    def wake(self, now: float, after: float, name: str, subject: str = "") -> None:
        """Have `accept` give this name and subject back later."""
        self.effects.append(self._timers.arm(now, after, name, subject))

    def accept(self, now: float, timer: Timer) -> bool:
        """Whether the timer still matters. Those of calls are dealt with here."""
        if self._timers.accept(now, timer) is None:
            return False
        if timer.name == "patience":
            self._out_of_patience(now, int(timer.subject))
        return True

    def stop(self) -> None:
        """Nothing matters any more."""
        self._timers.clear()
        self._calls.clear()
        self._queue.clear()

    def link(self, peer: PeerId, up: bool) -> None:
        """A connection was made, or the last one with `peer` lost."""
        if up:
            self._linked[peer] = None
        else:
            self._linked.pop(peer, None)

    # -- one call -----------------------------------------------------------------------------------------

    def ask(self, now: float, to: Contact, message: Message, asker: Asker) -> None:
        """Call `to`, now or when it is this call's turn; never, if we are busy and it is for others' sake."""
        if asker is UNHEARD and self.is_busy:
            return
        self._queue.append(Call(to, message, asker))
        self._send(now)

    def answered(self, now: float, number: int, answer: Message) -> None:
        """The shell has an answer."""
        call = self._take(number)
        if call is None:
            return
        self._round_trip[call.is_linked].observe(now - call.sent)
        self._table.heard(now, call.to.peer)
        if not self._take_in(now, call, answer) and not call.is_overdue:
            call.asker.failed(now, call.to)
        self._send(now)

    def failed(self, now: float, number: int) -> None:
        """The shell has given up."""
        call = self._take(number)
        if call is not None and not call.is_overdue:
            self._fail(now, call)
        self._send(now)

    def _take_in(self, now: float, call: Call, answer: Message) -> bool:
        if isinstance(answer, Refused):
            return False
        try:
            call.asker.answered(now, call.to, answer)
        except RemoteError as error:
            self._table.forget(now, call.to.peer)
            self.tell(Blamed(call.to.peer, error.reason))
            return False
        return True

    def _send(self, now: float) -> None:
        while self._queue and self._waiting < IN_FLIGHT:
            call = self._queue.popleft()
            self._number += 1
            self._waiting += 1
            call.sent, call.is_linked = now, call.to.peer in self._linked
            self._calls[self._number] = call
            self.effects.append(Ask(self._number, call.to, call.message))
            self.wake(now, self._round_trip[call.is_linked].deadline(), "patience", str(self._number))

    def _take(self, number: int) -> Call | None:
        call = self._calls.pop(number, None)
        if call is not None and not call.is_overdue:
            self._waiting -= 1
            self._timers.disarm("patience", str(number))
        return call

    def _out_of_patience(self, now: float, number: int) -> None:
        call = self._calls[number]
        call.is_overdue = True
        self._waiting -= 1
        self._fail(now, call)
        self._send(now)

    def _fail(self, now: float, call: Call) -> None:
        self._table.silent(now, call.to.peer)
        call.asker.failed(now, call.to)


def _patience() -> Estimate:
    return Estimate(FIRST_PATIENCE, LEAST_PATIENCE, MOST_PATIENCE)
