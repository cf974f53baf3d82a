"""Greetings: nodes tell each other their addresses, and whether they serve.

Rules:
- A server enters the table when it has answered our Greet, and at no other time. So a peer that greets us and says that
  it serves is greeted in return first.
- A server that no longer serves leaves the table with its next answer.
- A peer is not greeted twice within PAUSE, however often it is named to us, so nobody can make us call at will. A peer
  that did not serve, and says itself that it does now, is greeted in return all the same: a call for a call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from shoal.dht.calls import Calls
from shoal.dht.clock import ClockCheck, WallClock
from shoal.dht.table import Table
from shoal.dht.vetting import vet_addresses
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.dht import Contact, Greet, Greeted

PAUSE = 30.0  # seconds
REMEMBERED = 1024  # peers that were greeted

OnKnown = Callable[[float, Contact, bool], None]
"""on_known(now, contact, serves): a peer that was not in the table has answered."""


class Greeter:
    """Greets, is greeted, and fills the table."""

    def __init__(
        self, me: PeerId, table: Table, calls: Calls, on_known: OnKnown, wall: WallClock | None = None
    ) -> None:
        self.addresses: tuple[str, ...] = ()
        self.serves = False
        self._me, self._table, self._calls, self._on_known = me, table, calls, on_known
        self._greeted: OrderedDict[PeerId, float] = OrderedDict()
        self._clients: OrderedDict[PeerId, None] = OrderedDict()  # peers that greeted us and did not serve
        self._wall = wall or WallClock()
        self._clocks = ClockCheck(calls, self._wall)

    def greet(self, now: float, contact: Contact, *, anew: bool = False) -> None:
        """Greet a peer, unless we just have; with `anew` even then."""
        if contact.peer == self._me or (not anew and now - self._greeted.get(contact.peer, -PAUSE) < PAUSE):
            return
        self._greeted[contact.peer] = now
        self._greeted.move_to_end(contact.peer)
        if len(self._greeted) > REMEMBERED:
            self._greeted.popitem(last=False)
        self._calls.ask(now, contact, Greet(self.addresses, self.serves), self)

    def serve(self, now: float, sender: PeerId, greet: Greet) -> Greeted:
        """The answer to a greeting; the sender is greeted in return, or leaves the table, if that is due."""
        vet_addresses(greet.addresses, sender)
        contact = Contact(sender, greet.addresses)
        has_changed = self._has_changed(now, sender, greet.serves)
        if not greet.serves:
            self._table.forget(now, sender)
        elif sender in self._table:
            self._table.add(now, contact)
        elif greet.addresses and not self._calls.is_busy and self._table.wants(now, contact):
            self.greet(now, contact, anew=has_changed)
        return self.greeted(now)

    def _has_changed(self, now: float, sender: PeerId, serves: bool) -> bool:
        """Whether the sender did not serve when it greeted us last, and does now."""
        if not serves:
            self._clients[sender] = None
            if len(self._clients) > REMEMBERED:
                self._clients.popitem(last=False)
        elif sender in self._clients:
            del self._clients[sender]
            self._table.heard(now, sender)  # it may be dialled again
            return True
        return False

    def greeted(self, now: float) -> Greeted:
        """Our answer to a greeting."""
        return Greeted(self.addresses, self.serves, int(self._wall.at(now)))

    def answered(self, now: float, contact: Contact, answer: Message) -> None:
        """Take the answer to our greeting: the peer enters the table if it serves, and else leaves it."""
        if not isinstance(answer, Greeted):
            raise RemoteError(f"answers Greet with {type(answer).__name__}", contact.peer)
        vet_addresses(answer.addresses, contact.peer)
        self._clocks.hear(now, answer.clock)
        known = Contact(contact.peer, answer.addresses or contact.addresses)
        if not answer.serves:
            self._table.forget(now, contact.peer)
        if not answer.serves or self._table.add(now, known):
            self._on_known(now, known, answer.serves)

    def failed(self, now: float, contact: Contact) -> None:
        """Nothing follows here: the table counts silences."""
