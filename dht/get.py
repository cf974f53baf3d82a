"""Reading a key: looks all its places up side by side; the newest version that any replica gives wins.

`Tally` counts what replicas said, `RegionRead` asks whole regions where the nearest servers are suspicious, and `Get`
is one get from its beginning to its end.

Rules:
- Only answers of servers among the REPLICAS nearest that a lookup has found so far count for its place: others may keep
  old copies, and know nothing of later versions.
- A place agrees when such a server returns the newest version found anywhere. It is exhausted when WANTED_PER_PATH
  servers of each path have answered. The get ends when every place agrees or is exhausted, and `quorum` replicas agree
  or all places are exhausted. So an attacker who holds one place, or the first step of the way to it, decides nothing
  alone, and a missing key costs few calls.
- Our own copy counts as one replica.
- Where all places are crowded (region.py), the nearest servers may all belong to an attacker. Then whole regions are
  read, place by place, until replicas agree. The answers of the nearest count like those of any other replica: a
  version that they hide is found elsewhere, and an old version of theirs loses to the newest.
- At each place the nearest server that lacks a newest version is given it, for later readers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from shoal.dht.calls import IGNORE_ANSWER, Calls
from shoal.dht.clock import WallClock
from shoal.dht.effects import Found, Got
from shoal.dht.keys import COPIES, REPLICAS, place
from shoal.dht.lookup import Candidate, Lookup, State
from shoal.dht.record import Expired, Slot, check_record, rank, slot_of
from shoal.dht.region import SWEEP_SECONDS, Region, Sweep, is_crowded
from shoal.dht.table import Table
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.signing import Signer
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.dht import Contact, FindRecords, Nodes, Record, Records, Store

Rank = tuple[int, int, bytes]
REGION_READ_SECONDS = 20.0  # plus the time of the last calls
WANTED_PER_PATH = 2  # servers at the end of each path that must answer before a key counts as missing
MAX_CACHED = 8  # records given to one server that lacked them


class Tally:
    """Counts the replicas of the entries under one key."""

    def __init__(self, key: Digest, subkeys: tuple[tuple[PeerId, str], ...], signer: Signer, wall: WallClock) -> None:
        self._key, self._wall = key, wall
        self._subkeys = dict.fromkeys(subkeys)
        self._signer = signer
        self._newest: dict[Slot, tuple[Rank, Record]] = {}
        self._words: dict[PeerId, dict[Slot, Rank]] = {}

    def count(self, now: float, replica: PeerId, records: tuple[Record, ...]) -> None:
        """Count what `replica` holds; raises RemoteError, with nothing changed, if it is forged or not asked for."""
        word: dict[Slot, Rank] = {}
        good: list[tuple[Slot, Rank, Record]] = []
        for record in records:
            slot = slot_of(record)
            if record.key != self._key or (self._subkeys and slot[1:] not in self._subkeys):
                raise RemoteError("answers with a record that was not asked for", replica)
            if slot in word:
                raise RemoteError("answers with two versions of one entry", replica)
            try:
                check_record(record, self._wall.at(now), self._signer, replica)
            except Expired:
                continue
            word[slot] = rank(record)
            good.append((slot, word[slot], record))
        self._words[replica] = word
        for slot, version, record in good:
            if slot not in self._newest or version > self._newest[slot][0]:
                self._newest[slot] = version, record

    def has_heard(self, replica: PeerId) -> bool:
        """Whether `replica` has answered."""
        return replica in self._words

    def is_whole(self, replica: PeerId) -> bool:
        """Whether something was found, and `replica` gave the newest version of all of it."""
        word = self._words.get(replica, {})
        return bool(self._newest) and all(word.get(slot) == version for slot, (version, _) in self._newest.items())

    def lacks(self, replica: PeerId) -> tuple[Record, ...]:
        """The newest versions that `replica` lacks; none if it has not answered."""
        word = self._words.get(replica)
        if word is None:
            return ()
        return tuple(record for slot, (version, record) in self._newest.items() if word.get(slot, ()) < version)

    def has_quorum(self, quorum: int) -> bool:
        """Whether something was found, and at least `quorum` replicas gave the newest version of each entry."""
        return bool(self._newest) and all(found.replicas >= quorum for found in self.found())

    def found(self) -> tuple[Found, ...]:
        """The newest version of each entry, and how many replicas gave it."""
        return tuple(
            Found(record, sum(word.get(slot) == version for word in self._words.values()))
            for slot, (version, record) in self._newest.items()
        )


class RegionRead:
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
        """How many calls it made."""
        return self._asked + sum(sweep.calls_made for sweep in self._sweeps)

    @property
    def hops(self) -> int:
        """The hops of the longest lookup, and one to its servers."""
        return max((sweep.hops + 1 for sweep in self._sweeps), default=0)

    def begin(self, now: float) -> None:
        """Find the servers in the region of the next place."""
        self._until = self._until or now + REGION_READ_SECONDS
        target = int.from_bytes(place(self._question.key, len(self._sweeps)), "big")
        region = Region.around(target, self._table)
        sweep = Sweep(self._me, self._table, self._calls, region, min(now + SWEEP_SECONDS, self._until), self._swept)
        self._sweeps.append(sweep)
        sweep.begin(now)

    def answered(self, now: float, contact: Contact, answer: Message) -> None:
        """Count the records of a server."""
        if not isinstance(answer, Records):
            raise RemoteError(f"answers FindRecords with {type(answer).__name__}", contact.peer)
        self._tally.count(now, contact.peer, answer.records)
        self.answers += 1
        self.failed(now, contact)

    def failed(self, now: float, contact: Contact) -> None:
        """Wait for a server no longer."""
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


class Get:
    """One get, from `begin` until `is_over`; it ends with one Got."""

    def __init__(
        self,
        ticket: int,
        question: FindRecords,
        quorum: int,
        signer: Signer,
        calls: Calls,
        wall: WallClock | None = None,
    ) -> None:
        self._ticket, self._question, self._quorum = ticket, question, quorum
        self._tally = Tally(question.key, question.subkeys, signer, wall or WallClock())
        self._calls = calls
        self._lookups: list[Lookup] = []
        self._hops = 0
        self._is_deep = False  # all places seem crowded, so REPLICAS servers are asked at each
        self.is_over = False

    def begin(self, now: float, me: PeerId, table: Table, held: tuple[Record, ...]) -> None:
        """Look all places up; `held` are the records that we hold ourselves."""
        self._table = table
        self._region_read = RegionRead(me, table, self._calls, self._question, self._tally, self._quorum, self._end)
        if held:
            self._tally.count(now, me, held)
        for copy in range(COPIES):
            question = dataclasses.replace(self._question, copy=copy)
            target = place(question.key, copy)
            self._lookups.append(
                Lookup(me, table, self._calls, target, WANTED_PER_PATH, self._settle, question, self._heard)
            )
        for lookup in self._lookups:
            lookup.begin(now)

    def _heard(self, now: float, candidate: Candidate, answer: Nodes | Records) -> None:
        assert isinstance(answer, Records)
        self._tally.count(now, candidate.contact.peer, answer.records)
        self._hops = max(self._hops, candidate.hop)

    def _settle(self, now: float) -> None:
        """Go on with the lookups that are still needed, or end."""
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
        """End, or ask more servers if all places are crowded."""
        for lookup in self._lookups:
            lookup.stop()
        if not all(is_crowded(each.target, each.named(REPLICAS), self._table) for each in self._lookups):
            self._end(now)
        elif not self._is_deep:
            self._look_deeper(now)
        elif all(is_crowded(each.target, each.responded(REPLICAS), self._table) for each in self._lookups):
            self._region_read.begin(now)
        else:
            self._end(now)

    def _look_deeper(self, now: float) -> None:
        """Ask all of the nearest: names cost nothing, so a place is crowded only if the servers there have answered."""
        self._is_deep = True
        for lookup in self._lookups:
            lookup.deepen(REPLICAS)
        for lookup in self._lookups:
            lookup.go_on(now)

    def _end(self, now: float) -> None:
        self.is_over = True
        answers = sum(lookup.answers for lookup in self._lookups) + self._region_read.answers
        calls = sum(lookup.calls_made for lookup in self._lookups) + self._region_read.calls_made
        hops = max(self._hops, self._region_read.hops)
        self._calls.tell(Got(self._ticket, self._tally.found(), answers, hops, calls))
        for copy, lookup in enumerate(self._lookups):
            self._cache(now, copy, lookup)

    def _cache(self, now: float, copy: int, lookup: Lookup) -> None:
        for candidate in lookup.nearest(REPLICAS):
            lacking = self._tally.lacks(candidate.contact.peer)[:MAX_CACHED]
            if lacking:
                self._calls.ask(now, candidate.contact, Store(lacking, copy), IGNORE_ANSWER)
                return
