"""Reading a key from whole regions, where all of its places are crowded: place by place, until replicas agree.

Those who lie nearest have been asked already, and what they said counts like the word of any other replica: a version
that they keep back is found all the same, and an old one of theirs loses to the newest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from shoal.dht.calls import Calls
from shoal.dht.keys import COPIES, place
from shoal.dht.region import SECONDS, Region, Sweep
from shoal.dht.table import Table
from shoal.dht.tally import Tally
from shoal.protocol.errors import RemoteError
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.dht import Contact, FindRecords, Records
from shoal.protocol.wire import Message

IN_ALL = 20.0  # seconds, and what the last calls take


class WideRead:
    """Adds to `tally` what the servers of a key's regions hold, from `begin` until `on_end`."""

    def __init__(
        self,
        me: PeerId,
        table: Table,
        calls: Calls,
        question: FindRecords,
        tally: Tally,
        quorum: int,
        on_end: Callable[[float], None],
    ) -> None:
        self._me, self._table, self._calls = me, table, calls
        self._question, self._tally, self._quorum, self._on_end = question, tally, quorum, on_end
        self._sweeps: list[Sweep] = []
        self._waiting: set[PeerId] = set()
        self._until = 0.0
        self._asked = 0
        self.answers = 0

    @property
    def calls_made(self) -> int:
        """What it cost."""
        return self._asked + sum(sweep.calls_made for sweep in self._sweeps)

    @property
    def hops(self) -> int:
        """The longest way."""
        return max((sweep.hops + 1 for sweep in self._sweeps), default=0)

    def begin(self, now: float) -> None:
        """Find the servers around the next place."""
        self._until = self._until or now + IN_ALL
        target = int.from_bytes(place(self._question.key, len(self._sweeps)), "big")
        region = Region.around(target, self._table)
        sweep = Sweep(self._me, self._table, self._calls, region, min(now + SECONDS, self._until), self._swept)
        self._sweeps.append(sweep)
        sweep.begin(now)

    def answered(self, now: float, contact: Contact, answer: Message) -> None:
        """A server has answered."""
        if not isinstance(answer, Records):
            raise RemoteError(f"answers FindRecords with {type(answer).__name__}", contact.peer)
        self._tally.count(now, contact.peer, answer.records)
        self.answers += 1
        self.failed(now, contact)

    def failed(self, now: float, contact: Contact) -> None:
        """A server is not waited for any longer."""
        if contact.peer in self._waiting:
            self._waiting.remove(contact.peer)
            self._end_if_done(now)

    def _swept(self, now: float, servers: list[Contact]) -> None:
        question = dataclasses.replace(self._question, copy=len(self._sweeps) - 1)
        unheard = [server for server in servers if not self._tally.has_heard(server.peer)]
        self._waiting = {server.peer for server in unheard}
        self._asked += len(unheard)
        for server in unheard:
            self._calls.ask(now, server, question, self)
        self._end_if_done(now)

    def _end_if_done(self, now: float) -> None:
        if self._waiting:
            return
        if self._tally.has_quorum(self._quorum) or len(self._sweeps) == COPIES or now >= self._until:
            self._on_end(now)
        else:
            self.begin(now)
