"""What a server answers, what it refuses, and whom it blames; after blame nothing is different."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.dht import server
from shoal.dht.keys import BITS, COPIES, REPLICAS, K, node_id, place
from shoal.dht.record import MAX_LIFE, MAX_SKEW, CachingSigner
from shoal.dht.server import MAX_STORE, MAX_WANTED, RECORDS_A_QUESTION, Server
from shoal.dht.store import LIMITS, Limits, RecordStore
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message, encode
from shoal.protocol.messages.dht import (
    Contact,
    FindNode,
    FindRecords,
    Greet,
    Nodes,
    Record,
    Records,
    Store,
    Stored,
    StoreResult,
)
from shoal.protocol.messages.node import Refused
from tests.unit.dht.record_kit import ALICE, BOB, CAROL, HOUR, KEY, NOW, key_of, signed_record, signer_of

US, ASKER = BOB, CAROL.peer
OTHERS = [Contact(PeerId(f"server {number}"), (f"/ip4/192.0.2.{number}/tcp/4101",)) for number in range(60)]


class Setting:
    """A server that knows `known`."""

    def __init__(self, known: list[Contact] | None = None, serving: bool = True, limits: Limits = LIMITS) -> None:
        self.known, self.population = known or [], 1e9  # servers in all
        self.store = RecordStore(US.peer, limits)
        self.server = Server(CachingSigner(signer_of(US)), self.store, self, serving)

    def closest(self, target: int, count: int) -> tuple[Contact, ...]:
        return tuple(sorted(self.known, key=lambda contact: node_id(contact.peer) ^ target)[:count])

    def expected(self, distance: int) -> float:
        return self.population * distance / (1 << BITS)

    def ask(self, message: Message, sender: PeerId = ASKER, now: float = NOW) -> Message:
        return self.server.serve(now, sender, message)

    def stored(self, *records: Record, copy: int = 0, sender: PeerId = ASKER) -> tuple[StoreResult, ...]:
        answer = self.ask(Store(records, copy), sender)
        assert isinstance(answer, Stored)
        return answer.results

    def records(self, copy: int = 0, now: float = NOW) -> Records:
        answer = self.ask(FindRecords(KEY, copy, ()), now=now)
        assert isinstance(answer, Records)
        return answer


# -- questions ----------------------------------------------------------------------------------------------


def test_the_nearest_servers_without_the_one_that_asks() -> None:
    target = key_of("target")
    setting = Setting(OTHERS)
    nearest = setting.closest(int.from_bytes(target, "big"), K + 1)
    assert setting.ask(FindNode(target)) == Nodes(nearest[:K])
    assert setting.ask(FindNode(target), sender=nearest[3].peer) == Nodes(nearest[:3] + nearest[4:])


def test_records_come_with_the_few_servers_nearest_to_the_place_that_was_asked_for() -> None:
    """Who is given nothing needs more of them."""
    setting = Setting(OTHERS[:10])
    record = signed_record()
    assert setting.stored(record, copy=1) == (StoreResult.HELD,)
    near = [setting.closest(int.from_bytes(place(KEY, copy), "big"), K) for copy in range(COPIES)]
    for copy in range(COPIES):
        assert setting.records(copy) == Records((record,), 1, near[copy][:REPLICAS])
    for copy in range(COPIES):
        assert setting.records(copy, now=NOW + HOUR) == Records((), 0, near[copy])


def test_of_some_subkeys_only() -> None:
    setting = Setting()
    setting.stored(signed_record(subkey="x"), signed_record(subkey="y"), signed_record(BOB, subkey="x"))
    answer = setting.ask(FindRecords(KEY, 0, ((ALICE.peer, "y"), (ALICE.peer, "z"))))
    assert answer == Records((signed_record(subkey="y"),), 1, ())


def test_an_answer_is_bounded() -> None:
    setting = Setting()
    for author in range(100):
        sender = PeerId(f"author {author}")
        setting.store.put(NOW, dataclasses.replace(signed_record(value=bytes(1024)), author=sender), 0, sender)
    answer = setting.records()
    assert answer.held == 100
    sizes = [len(encode(record)) for record in answer.records]
    assert server.ANSWER - sizes[0] < sum(sizes) <= server.ANSWER


# -- stores -------------------------------------------------------------------------------------------------


def test_a_new_version_replaces_an_old_one_which_is_refused() -> None:
    setting = Setting()
    assert setting.stored(signed_record(sequence=2), signed_record(BOB)) == (StoreResult.HELD, StoreResult.HELD)
    assert setting.stored(signed_record(sequence=1), signed_record(BOB, sequence=2)) == (
        StoreResult.OUTDATED,
        StoreResult.HELD,
    )
    assert set(setting.records().records) == {signed_record(sequence=2), signed_record(BOB, sequence=2)}


def test_an_expired_record_is_refused_without_blame_since_clocks_differ() -> None:
    setting = Setting()
    assert setting.stored(signed_record(expires=NOW), signed_record()) == (StoreResult.EXPIRED, StoreResult.HELD)
    assert setting.records().held == 1


def test_what_an_author_stores_itself_is_on_its_account() -> None:
    """It would lose its place to ten single records if it were on the account of the one who passed on most."""
    setting = Setting(limits=Limits(per_key=3))
    setting.stored(signed_record(ALICE), signed_record(CAROL), signed_record(US), sender=PeerId("carrier"))
    setting.stored(signed_record(ALICE), sender=ALICE.peer)
    for number in range(10):
        name = PeerId(f"single {number}")
        setting.store.put(NOW, dataclasses.replace(signed_record(), author=name), 0, name)
    assert signed_record(ALICE) in setting.records().records


def test_a_node_that_does_not_serve_answers_but_stores_nothing() -> None:
    setting = Setting(OTHERS, serving=False)
    answer = setting.ask(Store((signed_record(),), 0))
    assert answer == Refused("this node does not serve: others cannot reach it")
    assert setting.records() == Records((), 0, setting.closest(int.from_bytes(place(KEY, 0), "big"), K))
    setting.server.serving = True
    assert setting.stored(signed_record()) == (StoreResult.HELD,)


def test_a_record_whose_place_is_nearer_to_enough_others_is_refused() -> None:
    def nearer(copy: int) -> list[Contact]:
        target = int.from_bytes(place(KEY, copy), "big")
        return [each for each in many if node_id(each.peer) ^ target < node_id(US.peer) ^ target]

    many = [Contact(PeerId(f"server {number}"), ()) for number in range(2000)]
    near = nearer(0)
    assert len(near) > K
    assert Setting(near[:K]).stored(signed_record(), signed_record(BOB)) == (StoreResult.TOO_FAR,) * 2
    assert Setting(near[: K - 1]).stored(signed_record()) == (StoreResult.HELD,)
    others = [each for each in many if each not in near]
    assert Setting(near[: K - 1] + others).stored(signed_record()) == (StoreResult.HELD,)


def test_a_record_is_taken_where_so_many_nearer_ones_cannot_be_honest() -> None:
    """K servers are nearer, where in so small a network fewer are to be expected: somebody has ground them."""
    target = int.from_bytes(place(KEY, 0), "big")
    many = [Contact(PeerId(f"server {number}"), ()) for number in range(2000)]
    near = [each for each in many if node_id(each.peer) ^ target < node_id(US.peer) ^ target]
    setting = Setting(near[:K])
    setting.population = 0.9 * K * (1 << BITS) / (node_id(US.peer) ^ target)
    assert setting.stored(signed_record()) == (StoreResult.HELD,)


# -- blame --------------------------------------------------------------------------------------------------

FORGED = dataclasses.replace(signed_record(BOB), value=b"forged")
BAD = [
    pytest.param(Store((signed_record(), FORGED), 0), "forged", id="one-forged"),
    pytest.param(Store((signed_record(), dataclasses.replace(FORGED, signature=b"")), 0), "forged", id="unsigned"),
    pytest.param(Store((signed_record(expires=NOW + MAX_LIFE + MAX_SKEW + 1),), 0), "would last", id="far-future"),
    pytest.param(Store((signed_record(),) * (MAX_STORE + 1), 0), "Store of 33 records", id="many-records"),
    pytest.param(Store((signed_record(),), COPIES), "for copy 3", id="no-such-copy"),
    pytest.param(FindRecords(KEY, COPIES, ()), "for copy 3", id="no-such-place"),
    pytest.param(FindRecords(KEY, 0, ((ALICE.peer, ""),) * (MAX_WANTED + 1)), "65 subkeys", id="many-subkeys"),
    pytest.param(Greet((), True), "Greet is not asked", id="another-call"),
    pytest.param(Nodes(()), "Nodes is not asked", id="an-answer"),
    pytest.param(signed_record(), "Record is not asked", id="a-record"),
]


@pytest.mark.parametrize(("message", "sentence"), BAD)
def test_a_bad_call_is_blamed_and_changes_nothing(message: Message, sentence: str) -> None:
    setting = Setting()
    with pytest.raises(RemoteError, match=sentence) as caught:
        setting.ask(message)
    assert caught.value.peer == ASKER
    assert len(setting.store) == 0


# -- how much one may ask -----------------------------------------------------------------------------------


def refused(answer: Message) -> bool:
    return isinstance(answer, Refused) and "too many" in answer.reason


@pytest.mark.parametrize("question", [FindNode(KEY), FindRecords(KEY, 0, ())])
def test_questions_are_bounded_for_each_peer(question: Message) -> None:
    setting = Setting()
    answers = [setting.ask(question) for _ in range(server.QUESTIONS + 1)]
    assert [refused(answer) for answer in answers] == [False] * server.QUESTIONS + [True]
    assert not refused(setting.ask(question, sender=ALICE.peer))
    assert not refused(setting.ask(question, now=NOW + 1))


def test_a_long_answer_counts_as_several_questions() -> None:
    setting = Setting()
    for number in range(3 * RECORDS_A_QUESTION):
        name = PeerId(f"author {number}")
        setting.store.put(NOW, dataclasses.replace(signed_record(), author=name), 0, name)
    asked = 0
    while not refused(setting.ask(FindRecords(KEY, 0, ()))):
        asked += 1
    assert asked == server.QUESTIONS // 4


def test_records_to_store_are_bounded_for_each_peer() -> None:
    setting = Setting()
    call = Store((signed_record(),) * MAX_STORE, 0)
    answers = [setting.ask(call) for _ in range(server.STORES // MAX_STORE + 1)]
    assert [refused(answer) for answer in answers] == [False] * (server.STORES // MAX_STORE) + [True]
    assert not refused(setting.ask(call, sender=ALICE.peer))
    assert refused(setting.ask(call, now=NOW + 1))
    assert not refused(setting.ask(call, now=NOW + 1 + MAX_STORE / server.STORES_A_SECOND))


def test_a_server_says_what_it_is() -> None:
    assert repr(Setting().server) == "Server(serving, RecordStore(0 records, 0 keys, 0 authors))"
