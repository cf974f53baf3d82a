"""Gets of keys whose places an attacker has crowded: by servers that deny records, or give an old version."""

from __future__ import annotations

import random

from shoal.dht.calls import Calls
from shoal.dht.effects import Blamed, Call, Got
from shoal.dht.get import Get
from shoal.dht.keys import COPIES, REPLICAS, place
from shoal.dht.region import Region
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.dht import FindNode, FindRecords, Record, Records, Store, Stored, StoreResult
from tests.unit.dht.core_kit import ME, NOW, Everybody, Wire, contacts, contacts_near, filled
from tests.unit.dht.record_kit import BOB, KEY, signed_record, signer_of

OLD, NEW = signed_record(sequence=1), signed_record(sequence=2)
RNG = random.Random("wide reads")
MANY = contacts(200, RNG)
TABLE = filled(MANY)
TARGETS = [int.from_bytes(place(KEY, copy), "big") for copy in range(COPIES)]
CROWDS = [contacts_near(target, 2 * REPLICAS, len(MANY), RNG) for target in TARGETS]
HONEST = {each.peer for each in MANY}
LIARS = {each.peer for crowd in CROWDS for each in crowd}


class Attacked:
    """A get while `crowds` lie around places, and all honest servers of the regions of `copies` hold NEW."""

    def __init__(self, crowds: int = COPIES, copies: tuple[int, ...] = (0, 1, 2), lie: tuple[Record, ...] = ()) -> None:
        self.regions = [Region.around(target, TABLE) for target in TARGETS]
        self.holders = {peer for peer in HONEST for copy in copies if self.regions[copy].holds(peer)}
        self.heard: set[PeerId] = set()
        self._lie = lie
        self.others = Everybody(MANY, *CROWDS[:crowds])
        calls = Calls(TABLE)
        self.wire = Wire(calls)
        self.get = Get(7, FindRecords(KEY, 0, ()), 2, signer_of(BOB), calls)
        self.get.begin(NOW, ME, TABLE, ())

    def outcome(self) -> Got:
        self.others.answer(self.wire, self.answer)
        assert self.get.is_over
        [got] = [event for event in self.wire.told if isinstance(event, Got)]
        assert not [event for event in self.wire.told if isinstance(event, Blamed)]
        return got

    def answer(self, ask: Call) -> Message | None:
        match ask.message:
            case FindRecords(key, copy):
                self.heard.add(ask.to.peer)
                held = self._lie if ask.to.peer in LIARS else (NEW,) if ask.to.peer in self.holders else ()
                return Records(held, len(held), self.others.nearest(ask.to.peer, place(key, copy)))
            case Store(records):
                return Stored((StoreResult.HELD,) * len(records))
        return None


def test_where_all_places_are_crowded_others_of_a_region_are_asked() -> None:
    attacked = Attacked()
    got = attacked.outcome()
    assert [found.record for found in got.found] == [NEW]
    assert got.found[0].replicas >= REPLICAS
    assert got.answers >= len(attacked.heard)
    assert got.calls > got.answers, "looking for them is a part of what it costs"


def test_an_old_version_that_the_crowd_agrees_on_loses() -> None:
    assert [found.record for found in Attacked(lie=(OLD,)).outcome().found] == [NEW]


def test_a_region_that_lacks_it_is_followed_by_the_next() -> None:
    attacked = Attacked(copies=(2,))
    assert [found.record for found in attacked.outcome().found] == [NEW]


def test_after_the_last_region_there_is_nothing() -> None:
    attacked = Attacked(copies=())
    assert attacked.outcome().found == ()
    for region in attacked.regions:
        honest = {peer for peer in HONEST if region.holds(peer)}
        assert len(honest & attacked.heard) >= 0.7 * len(honest)


def test_one_place_that_is_not_crowded_is_enough() -> None:
    attacked = Attacked(crowds=COPIES - 1)
    got = attacked.outcome()
    assert [found.record for found in got.found] == [NEW]
    assert got.calls == len(attacked.heard) < 30, "nobody was looked for around the others"


def test_a_silent_one_of_a_region_holds_nobody_up() -> None:
    attacked = Attacked()
    has_swept = False  # a region, for its servers
    while not (any(isinstance(ask.message, FindRecords) for ask in attacked.wire.look()) and has_swept):
        ask = attacked.wire.asks[0]
        has_swept |= isinstance(ask.message, FindNode)
        attacked.wire.answer(NOW, ask, attacked.answer(ask) or attacked.others.nodes(ask))
    silent = attacked.wire.asks[0]
    attacked.wire.fail(NOW, silent)
    assert [found.record for found in attacked.outcome().found] == [NEW]
    assert silent.to.peer not in attacked.heard


def test_names_alone_make_no_crowd() -> None:
    """Invented servers around all places, named by everybody: whoever is asked there is silent, and the get ends."""
    attacked = Attacked(copies=())
    while attacked.wire.look():
        ask = attacked.wire.asks[0]
        assert isinstance(ask.message, FindRecords), "the regions are not searched"
        if ask.to.peer in LIARS:
            attacked.wire.fail(NOW, ask)
        else:
            answer = attacked.answer(ask)
            assert answer is not None
            attacked.wire.answer(NOW, ask, answer)
    assert attacked.outcome().found == ()
