"""One get: the places of a key are looked up side by side, and the newest version that any replica gives wins.

Rules:
- Only the word of a server that is among the REPLICAS nearest of those that a lookup has found so far counts for its
  place: others may keep what they were given once, and know nothing of later versions.
- A place agrees when such a server gives the newest version of all that was found anywhere; or it is at its end, when
  NEAREST of each path have answered. The get ends when no place is open, and `quorum` replicas agree or all are at
  their end. So whoever holds one place, or stands first on the way to it, decides nothing alone; and a key under which
  there is nothing costs few calls.
- What we hold ourselves is one replica's word like any other.
- Where all places are crowded (shoal.dht.region), the nearest may all be of one hand: others are asked, too.
- The nearest server of each place that lacked something newest is given it: a copy on the path of those who come next.
"""

from __future__ import annotations

import dataclasses

from shoal.dht.calls import UNHEARD, Calls
from shoal.dht.clock import Wall
from shoal.dht.effects import Got
from shoal.dht.keys import COPIES, REPLICAS, place
from shoal.dht.lookup import Lookup
from shoal.dht.path import Candidate, State
from shoal.dht.region import is_crowded
from shoal.dht.table import Table
from shoal.dht.tally import Tally
from shoal.dht.wide_read import WideRead
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.dht import FindRecords, Nodes, Record, Records, Store
from shoal.protocol.signing import Signer

NEAREST = 2  # servers at the end of each path that must have nothing before there is nothing
MAX_CACHED = 8  # records given to one server that lacked them


class Get:
    """One get, from `begin` until `is_over`; its end is told."""

    def __init__(
        self,
        ticket: int,
        question: FindRecords,
        quorum: int,
        signer: Signer,
        calls: Calls,
        wall: Wall | None = None,
    ) -> None:
        self._ticket, self._question, self._quorum = ticket, question, quorum
        self._tally = Tally(question.key, question.subkeys, signer, wall or Wall())
        self._calls = calls
        self._lookups: list[Lookup] = []
        self._hops = 0
        self._is_deep = False  # all places seem crowded: as many are asked at each as hold its records
        self.is_over = False

    def begin(self, now: float, me: PeerId, table: Table, held: tuple[Record, ...]) -> None:
        """Look all places up; `held` is what we hold ourselves."""
        self._table = table
        self._wide = WideRead(me, table, self._calls, self._question, self._tally, self._quorum, self._end)
        if held:
            self._tally.count(now, me, held)
        for copy in range(COPIES):
            question = dataclasses.replace(self._question, copy=copy)
            target = place(question.key, copy)
            self._lookups.append(Lookup(me, table, self._calls, target, NEAREST, self._settle, question, self._heard))
        for lookup in self._lookups:
            lookup.begin(now)

    def _heard(self, now: float, candidate: Candidate, answer: Nodes | Records) -> None:
        assert isinstance(answer, Records)
        self._tally.count(now, candidate.contact.peer, answer.records)
        self._hops = max(self._hops, candidate.hop)

    def _settle(self, now: float) -> None:
        """Go on at the places that need it, or end."""
        if self.is_over:
            return
        pending = [lookup for lookup in self._lookups if not lookup.is_over]
        disagreeing = [lookup for lookup in pending if not self._agrees(lookup)]
        agreed = not disagreeing and self._tally.has_quorum(self._quorum) and not self._is_deep
        if not pending or agreed:
            self._looked(now)
            return
        for lookup in pending:
            if disagreeing and lookup not in disagreeing and not self._is_deep:
                lookup.pause()
            else:
                lookup.go_on(now)

    def _agrees(self, lookup: Lookup) -> bool:
        return lookup.answers > 0 and any(
            candidate.state is State.ANSWERED and self._tally.is_whole(candidate.contact.peer)
            for candidate in lookup.nearest(REPLICAS)
        )

    def _looked(self, now: float) -> None:
        """All places were looked up."""
        for lookup in self._lookups:
            lookup.stop()
        if not all(is_crowded(each.target, each.named(REPLICAS), self._table) for each in self._lookups):
            self._end(now)
        elif not self._is_deep:
            self._look_deeper(now)
        elif all(is_crowded(each.target, each.there(REPLICAS), self._table) for each in self._lookups):
            self._wide.begin(now)
        else:
            self._end(now)

    def _look_deeper(self, now: float) -> None:
        """Names cost nothing: whether there is a crowd is known when the nearest have answered."""
        self._is_deep = True
        for lookup in self._lookups:
            lookup.deepen(REPLICAS)
        for lookup in self._lookups:
            lookup.go_on(now)

    def _end(self, now: float) -> None:
        self.is_over = True
        answers = sum(lookup.answers for lookup in self._lookups) + self._wide.answers
        calls = sum(lookup.calls_made for lookup in self._lookups) + self._wide.calls_made
        hops = max(self._hops, self._wide.hops)
        self._calls.tell(Got(self._ticket, self._tally.found(), answers, hops, calls))
        for copy, lookup in enumerate(self._lookups):
            self._cache(now, copy, lookup)

    def _cache(self, now: float, copy: int, lookup: Lookup) -> None:
        for candidate in lookup.nearest(REPLICAS):
            lacking = self._tally.lacks(candidate.contact.peer)[:MAX_CACHED]
            if lacking:
                self._calls.ask(now, candidate.contact, Store(lacking, copy), UNHEARD)
                return
