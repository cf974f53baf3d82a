"""Calls of the DHT to other peers: numbered, bounded, each with a deadline learned from the round trips seen so far.

Rules:
- The handler is told once that a call failed: when its deadline passes, or when the shell says so, whichever is first.
- Deadlines for peers with a connection and for peers that must be dialled first are learned separately: a dial takes
  many times as long as a call over an existing connection.
- An answer counts however late it comes: the deadline ends the waiting, not the call.
- At most IN_FLIGHT calls wait for an answer; others wait for their turn, in order. While MOST_QUEUED wait, calls that
  only serve others are dropped: greetings in return, and records to hand over, which are sent again later.
- An answer that its handler refuses (RemoteError) is a failure, and its sender is blamed and forgotten. An answer that
  the peer is too busy for us is a failure too, but nobody's fault.
- The parts of the core collect what they want done in `effects`; the core returns that at the end of each input.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from shoal.dht.effects import Blamed, Call, Effect
from shoal.dht.table import Table
from shoal.protocol.base.effects import Event, Tell, Timer
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.timers import Timers
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.dht import Contact
from shoal.protocol.messages.node import Refused

IN_FLIGHT = 64
MOST_QUEUED = 1024
FIRST_PATIENCE, LEAST_PATIENCE, MOST_PATIENCE = 1.0, 0.1, 3.0  # seconds


class AnswerHandler(Protocol):
    """Takes the answer to a call."""

    def answered(self, now: float, contact: Contact, answer: Message) -> None:
        """Take the answer; raises RemoteError, before anything has changed, if no honest peer would give it."""

    def failed(self, now: float, contact: Contact) -> None:
        """There was no answer before the deadline; one may still come."""


class IgnoredAnswer:
    """A handler that ignores the answer."""

    def answered(self, now: float, contact: Contact, answer: Message) -> None:
        """See AnswerHandler."""

    def failed(self, now: float, contact: Contact) -> None:
        """See AnswerHandler."""


IGNORE_ANSWER = IgnoredAnswer()


@dataclass(slots=True)
class OpenCall:
    """A call that is queued, or on its way."""

    to: Contact
    message: Message
    handler: AnswerHandler
    sent: float = 0.0
    is_linked: bool = False  # there was a connection when it was sent
    is_overdue: bool = False


class Calls:
    """All calls of one core, and the other effects that it collects for its shell."""

    def __init__(self, table: Table) -> None:
        self.effects: list[Effect] = []
        self._table = table
        self._timers = Timers("dht")
        self._linked: dict[PeerId, None] = {}
        self._round_trip = {is_linked: _patience() for is_linked in (False, True)}
        self._calls: dict[int, OpenCall] = {}
        self._queue: deque[OpenCall] = deque()
        self._number = 0
        self._waiting = 0  # calls that were sent and are not overdue

    @property
    def linked(self) -> list[PeerId]:
        """The connected peers."""
        return list(self._linked)

    @property
    def is_busy(self) -> bool:
        """Whether so many calls wait for their turn that calls which only serve others are dropped."""
        return len(self._queue) >= MOST_QUEUED

    def drain(self) -> list[Effect]:
        """The effects since the last call, which are handed out once."""
        effects, self.effects = self.effects, []
        return effects

    def tell(self, event: Event) -> None:
        """Tell the application an event."""
        self.effects.append(Tell(event))

    def wake(self, now: float, after: float, name: str, subject: str = "") -> None:
        """Set a timer of this name and subject; `accept` says later whether it still matters."""
        self.effects.append(self._timers.arm(now, after, name, subject))

    def accept(self, now: float, timer: Timer) -> bool:
        """Whether the timer still matters. The deadlines of calls are handled here."""
        if self._timers.accept(now, timer) is None:
            return False
        if timer.name == "patience":
            self._out_of_patience(now, int(timer.subject))
        return True

    def stop(self) -> None:
        """Drop all calls and timers."""
        self._timers.clear()
        self._calls.clear()
        self._queue.clear()

    def link(self, peer: PeerId, up: bool) -> None:
        """Note that there is a connection with `peer`, or that the last one was lost."""
        if up:
            self._linked[peer] = None
        else:
            self._linked.pop(peer, None)

    # -- one call -----------------------------------------------------------------------------------------

    def ask(self, now: float, to: Contact, message: Message, handler: AnswerHandler) -> None:
        """Call `to`, now or when it is this call's turn; drop the call if we are busy and its answer is ignored."""
        if handler is IGNORE_ANSWER and self.is_busy:
            return
        self._queue.append(OpenCall(to, message, handler))
        self._send(now)

    def answered(self, now: float, number: int, answer: Message) -> None:
        """Take the answer to call `number` from the shell."""
        call = self._take(number)
        if call is None:
            return
        self._round_trip[call.is_linked].observe(now - call.sent)
        self._table.heard(now, call.to.peer)
        if not self._take_in(now, call, answer) and not call.is_overdue:
            call.handler.failed(now, call.to)
        self._send(now)

    def failed(self, now: float, number: int) -> None:
        """The shell has given up call `number`."""
        call = self._take(number)
        if call is not None and not call.is_overdue:
            self._fail(now, call)
        self._send(now)

    def _take_in(self, now: float, call: OpenCall, answer: Message) -> bool:
        if isinstance(answer, Refused):
            return False
        try:
            call.handler.answered(now, call.to, answer)
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
            self.effects.append(Call(self._number, call.to, call.message))
            self.wake(now, self._round_trip[call.is_linked].deadline(), "patience", str(self._number))

    def _take(self, number: int) -> OpenCall | None:
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

    def _fail(self, now: float, call: OpenCall) -> None:
        self._table.silent(now, call.to.peer)
        call.handler.failed(now, call.to)


def _patience() -> Estimate:
    return Estimate(FIRST_PATIENCE, LEAST_PATIENCE, MOST_PATIENCE)
