"""Puts: the nearest of each place hold the record, and silent ones are replaced."""

from __future__ import annotations

import random
from collections.abc import Sequence

from shoal.dht.calls import Calls
from shoal.dht.effects import Blamed, Call, Put
from shoal.dht.keys import COPIES, REPLICAS, K, node_id, place
from shoal.dht.put import SPARE, PutTask
from shoal.dht.region import Region
from shoal.dht.table import Table
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.dht import Contact, FindNode, Nodes, Record, Store, Stored, StoreResult
from tests.unit.dht.core_kit import (
    ME,
    Everybody,
    Wire,
    contacts,
    contacts_near,
    distance,
    filled,
    in_bucket,
)
from tests.unit.dht.record_kit import KEY, NOW, key_of, signed_record

RECORD = signed_record()
RNG = random.Random("puts")
SERVERS, MANY = contacts(16, RNG), contacts(100, RNG)
TARGETS = [int.from_bytes(place(KEY, copy), "big") for copy in range(COPIES)]


class Writing:
    """A put in a network of `servers` that are all known."""

    def __init__(
        self,
        servers: list[Contact] = SERVERS,
        *,
        serves: bool = False,
        settled: bool = True,
        table: Table | None = None,
        record: Record = RECORD,
    ) -> None:
        table = table or filled(servers, NOW, settled)
        self.holding: dict[int, set[PeerId]] = {copy: set() for copy in range(COPIES)}
        self.kept: list[int] = []
        self.calls = Calls(table)
        self.wire = Wire(self.calls)
        self.task = PutTask(3, record, self.calls)
        self.task.begin(NOW, ME, table, self._keep if serves else None)
        self.wire.look()

    def _keep(self, now: float, record: Record, copy: int) -> StoreResult:
        self.kept.append(copy)
        return StoreResult.HELD

    def asked(self) -> dict[int, list[Contact]]:
        """The servers that are asked to store, for each place."""
        found: dict[int, list[Contact]] = {copy: [] for copy in range(COPIES)}
        for ask in self.wire.asks:
            if isinstance(ask.message, Store):
                found[ask.message.copy].append(ask.to)
        return found

    def all_answer(self, result: StoreResult = StoreResult.HELD) -> Put:
        while not self.task.is_over:
            assert self.wire.asks
            for ask in list(self.wire.asks):
                near = sorted(SERVERS, key=lambda each: distance(each, TARGETS[0]))
                nodes = Nodes(tuple(each for each in near if each != ask.to))
                self.wire.answer(NOW, ask, nodes if isinstance(ask.message, FindNode) else Stored((result,)))
        return self.put()

    def everybody_answers(self, everybody: list[Contact]) -> Put:
        Everybody(everybody).answer(self.wire, self._stored)
        return self.put()

    def _stored(self, ask: Call) -> Stored | None:
        if not isinstance(ask.message, Store):
            return None
        self.holding[ask.message.copy].add(ask.to.peer)
        return Stored((StoreResult.HELD,))

    def put(self) -> Put:
        [put] = [event for event in self.wire.told if isinstance(event, Put)]
        return put


def nearest(copy: int, count: int, servers: Sequence[Contact] = SERVERS) -> list[Contact]:
    return sorted(servers, key=lambda each: distance(each, TARGETS[copy]))[:count]


def test_where_all_are_known_the_nearest_of_each_place_store_at_once() -> None:
    writing = Writing()
    assert writing.asked() == {copy: nearest(copy, REPLICAS) for copy in range(COPIES)}
    count = COPIES * REPLICAS
    assert writing.all_answer() == Put(3, held=count, wanted=count, refusals=(), hops=1, calls=count)


def test_elsewhere_they_are_looked_for_first() -> None:
    writing = Writing(settled=False)
    assert all(isinstance(ask.message, FindNode) for ask in writing.wire.asks)
    put = writing.all_answer()
    assert (put.held, put.wanted) == (COPIES * REPLICAS, COPIES * REPLICAS)
    assert put.hops == 2


def test_silent_servers_are_replaced_by_the_next() -> None:
    writing = Writing()
    silent = [ask for ask in writing.wire.asks if ask.message.copy == 0][:2]  # type: ignore[attr-defined]
    for ask in silent:
        writing.wire.fail(NOW, ask)
    assert writing.asked()[0][REPLICAS - 2 :] == nearest(0, REPLICAS + 2)[REPLICAS:]
    put = writing.all_answer()
    assert put.held == put.wanted == COPIES * REPLICAS
    assert put.calls == COPIES * REPLICAS + 2


def test_not_for_ever() -> None:
    writing = Writing(SERVERS)
    calls = 0
    while not writing.task.is_over:
        for ask in list(writing.wire.asks):
            calls += 1
            writing.wire.fail(NOW, ask)
    assert calls <= COPIES * (REPLICAS + SPARE)
    assert writing.put().held == 0


def test_refusals_are_reported_once_each_and_nobody_else_is_asked() -> None:
    put = Writing().all_answer(StoreResult.STORE_IS_FULL)
    assert put.refusals == (StoreResult.STORE_IS_FULL,)
    assert (put.held, put.calls) == (0, COPIES * REPLICAS)


class Newcomer(Writing):
    """Knows three of MANY, which seem to be all, and are far from every place; these refuse what is not theirs."""

    def __init__(self) -> None:
        near = {each.peer for copy in range(COPIES) for each in nearest(copy, REPLICAS + SPARE, MANY)}
        super().__init__([each for each in MANY if each.peer not in near][:3], serves=True)
        self.stored: list[tuple[int, Contact]] = []

    def answer_all(self) -> None:
        for ask in list(self.wire.asks):
            if isinstance(ask.message, FindNode):
                target = int.from_bytes(ask.message.target, "big")
                others = sorted((each for each in MANY if each != ask.to), key=lambda each: distance(each, target))
                self.wire.answer(NOW, ask, Nodes(tuple(others[:K])))
            else:
                assert isinstance(ask.message, Store)
                copy = ask.message.copy
                self.stored.append((copy, ask.to))
                is_near = ask.to in nearest(copy, REPLICAS + SPARE, MANY)
                self.wire.answer(NOW, ask, Stored((StoreResult.HELD if is_near else StoreResult.TOO_FAR,)))

    def finish(self) -> Put:
        while not self.task.is_over:
            self.answer_all()
        return self.put()

    def holders(self, copy: int) -> list[Contact]:
        return [each for number, each in self.stored if number == copy]


def test_a_newcomer_that_knows_too_few_looks_for_those_that_are_nearer() -> None:
    newcomer = Newcomer()
    put = newcomer.finish()
    assert put.refusals == ()
    assert (put.held, put.wanted) == (COPIES * REPLICAS, COPIES * REPLICAS)
    for copy, target in enumerate(TARGETS):
        is_ours = node_id(ME) ^ target < distance(nearest(copy, REPLICAS, MANY)[-1], target)
        assert set(newcomer.holders(copy)[3:]) == set(nearest(copy, REPLICAS - is_ours, MANY))


def test_a_late_answer_does_not_end_the_search_for_nearer_ones() -> None:
    newcomer = Newcomer()
    late, *others = list(newcomer.wire.asks)
    [patience] = [wake.timer for wake in newcomer.wire.wakes if wake.timer.subject == str(late.number)]
    for ask in others:
        newcomer.wire.answer(NOW, ask, Stored((StoreResult.TOO_FAR,)))
    newcomer.calls.accept(NOW + 2, patience)
    newcomer.wire.look()
    assert all(isinstance(ask.message, FindNode) for ask in newcomer.wire.asks[1:])
    newcomer.wire.answer(NOW + 2, late, Stored((StoreResult.HELD,)))
    assert not newcomer.task.is_over
    put = newcomer.finish()
    assert (put.held, put.wanted) == (COPIES * REPLICAS, COPIES * REPLICAS)


def test_a_late_answer_counts_while_others_are_waited_for() -> None:
    writing = Writing()
    first = writing.wire.asks[0]
    writing.wire.lose_patience(NOW + 1)
    writing.wire.answer(NOW + 1.1, first, Stored((StoreResult.HELD,)))
    assert writing.all_answer().held >= COPIES * REPLICAS


def test_if_we_are_among_the_nearest_we_hold_it_too() -> None:
    alone = Writing([], serves=True)
    assert alone.kept == [0, 1, 2]
    assert alone.put() == Put(3, held=3, wanted=3, refusals=(), hops=1, calls=0)
    few = Writing(SERVERS[:4], serves=True)
    assert few.all_answer().held == COPIES * 5


def test_a_client_alone_holds_nothing() -> None:
    assert Writing([]).put() == Put(3, held=0, wanted=0, refusals=(), hops=1, calls=0)


def test_a_server_that_answers_something_else_is_blamed_and_replaced() -> None:
    writing = Writing()
    writing.wire.answer(NOW, writing.wire.asks[0], Nodes(()))
    assert isinstance(writing.wire.told[0], Blamed)
    assert writing.all_answer().held == COPIES * REPLICAS


def test_a_far_away_owner_of_a_full_table_keeps_nothing() -> None:
    near = sorted(in_bucket(256, 20) + in_bucket(255, 20), key=lambda each: distance(each, TARGETS[0]))
    writing = Writing(near, serves=True)
    assert len(writing.kept) < COPIES


# -- where somebody has ground identities ---------------------------------------------------------------------

ATTACKED = 1
GROUND = contacts_near(TARGETS[ATTACKED], 6, len(MANY), RNG)


def test_a_crowded_place_is_stored_with_all_of_its_region() -> None:
    everybody = MANY + GROUND
    table = filled(everybody)
    writing = Writing(table=table)
    put = writing.everybody_answers(everybody)
    region = Region.around(TARGETS[ATTACKED], table)
    here = {each.peer for each in everybody if region.holds(each.peer)}
    assert writing.holding[ATTACKED] == here
    assert len(here & {each.peer for each in MANY}) >= REPLICAS
    assert all(len(writing.holding[copy]) == REPLICAS for copy in range(COPIES) if copy != ATTACKED)
    assert put.held == put.wanted == len(here) + 2 * REPLICAS


def test_in_a_crowded_region_of_our_own_we_hold_it_too() -> None:
    record, everybody = next(filter(is_ours_by_region, map(attacked, range(1000))))
    writing = Writing(table=filled(everybody), serves=True, record=record)
    writing.everybody_answers(everybody)
    assert ATTACKED in writing.kept


def attacked(number: int) -> tuple[Record, list[Contact]]:
    """A record, and everybody, with some that were ground to lie around a place of it."""
    record = signed_record(key=key_of(f"run {number}"))
    return record, MANY + contacts_near(
        int.from_bytes(place(record.key, ATTACKED), "big"), 6, len(MANY), random.Random(number)
    )


def is_ours_by_region(attack: tuple[Record, list[Contact]]) -> bool:
    """Whether we are in the region, but not among the nearest of the place."""
    record, everybody = attack
    target = int.from_bytes(place(record.key, ATTACKED), "big")
    return Region.around(target, filled(everybody)).holds(ME)
