"""A flood of stores, from one peer and then from a thousand, through codec and server: memory and honest records."""

from __future__ import annotations

import random
import sys
import tracemalloc
from collections.abc import Iterator

import pytest

from shoal.dht.kademlia import Kademlia
from shoal.dht.record import REMEMBERED, CachingSigner
from shoal.dht.server import MAX_STORE, MOST_PEERS, STORES, STORES_A_SECOND, Server
from shoal.dht.store import BYTES_EACH, LIMITS, RecordStore
from shoal.dht.table import Table
from shoal.protocol.base.ids import PeerId, digest
from shoal.protocol.base.signing import signed
from shoal.protocol.base.wire import NODE_TAGS, decode, encode
from shoal.protocol.messages.dht import FindNode, Record, Store, Stored, StoreResult
from shoal.protocol.messages.node import Refused
from tests.simulation.signing import FakeSigner
from tests.unit.dht.record_kit import KEY, NOW, key_of, largest, unsigned

OWN = PeerId("us")
HONEST = [PeerId(f"honest {number}") for number in range(30)]
FLOODERS = [PeerId(f"12D3KooW flooder {number:035}") for number in range(1000)]
TABLES = 4 << 20  # the server's own


def serving() -> tuple[Server, RecordStore]:
    store = RecordStore(OWN)
    return Server(CachingSigner(FakeSigner(OWN)), store, Table(OWN), True), store


def keep(server: Server, sender: PeerId, records: list[Record]) -> Stored | Refused:
    """Over the wire, so that nothing is shared with what the sender has in memory."""
    call = Store(tuple(signed(record, FakeSigner(record.author)) for record in records), 0)
    answer = server.serve(NOW, sender, decode(encode(call), sender, tags=NODE_TAGS))
    assert isinstance(answer, Stored | Refused)
    return answer


def honest_stores(server: Server) -> list[Record]:
    """Each of the honest has an entry in the directory and another of its own; five were passed on by a carrier."""
    records = [unsigned(name, key=key) for name in HONEST for key in (KEY, key_of(name))]
    carried = [unsigned("somebody", key=key_of(f"carried {number}")) for number in range(5)]
    for record in records:
        assert keep(server, record.author, [record]) == Stored((StoreResult.HELD,))
    assert keep(server, PeerId("honest carrier"), carried) == Stored((StoreResult.HELD,) * 5)
    return records + carried


def still_there(store: RecordStore, records: list[Record]) -> list[Record]:
    return [each for each in records if store.find(NOW, each.key, ((each.author, each.subkey),), 1 << 20)[1]]


def batches(flooder: int, count: int) -> Iterator[tuple[PeerId, list[Record]]]:
    """Records as large as can be: a fourth of them in the directory, the others under keys that nobody else uses."""
    peer, numbers = FLOODERS[flooder], range(flooder * 10_001, flooder * 10_001 + count)
    keys = [digest("flood", number.to_bytes(4)) if number % 4 else KEY for number in numbers]
    made = [largest(peer, key, number) for key, number in zip(keys, numbers, strict=True)]
    yield from ((peer, made[start : start + MAX_STORE]) for start in range(0, count, MAX_STORE))


def test_one_peer_fills_its_own_share_and_no_more() -> None:
    server, store = serving()
    honest = honest_stores(server)
    answers = [keep(server, peer, batch) for peer, batch in batches(0, 2 * STORES)]
    assert [type(answer) for answer in answers] == [Stored] * 16 + [Refused] * 16
    assert len(store) - len(honest) == STORES * 3 // 4 + LIMITS.per_author_and_key
    assert still_there(store, honest) == honest


@pytest.mark.parametrize("each", [1, 12])
def test_a_thousand_peers_stay_within_the_bound_and_displace_no_honest_record(each: int) -> None:
    """With one record each nobody has more than another; with 12 there is room for two thirds."""
    server, store = serving()
    honest = honest_stores(server)
    tracemalloc.start()
    try:
        for flooder in range(len(FLOODERS)):
            for peer, batch in batches(flooder, each):
                keep(server, peer, batch)
        used, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    print(f"{store}: {used >> 10} KiB, at most {peak >> 10} KiB")
    assert peak < LIMITS.records * BYTES_EACH + TABLES
    assert len(store) == min(LIMITS.records, len(honest) + 1000 * each)
    assert still_there(store, honest) == honest


def test_with_more_names_than_room_who_was_there_stays() -> None:
    """Nothing can be said for newcomers: a name costs nothing, so a crowd of them looks like anybody."""
    store = RecordStore(OWN)
    early = [unsigned(name) for name in HONEST]
    for record in early:
        assert store.put(NOW, record, 0, record.author) is StoreResult.HELD
    for number in range(LIMITS.records + 500):
        flooder = unsigned(f"flooder {number}", key=key_of(str(number // 4)))
        store.put(NOW, flooder, 0, flooder.author)
    assert len(store) == LIMITS.records
    assert still_there(store, early) == early
    late = unsigned("late")
    assert store.put(NOW, late, 0, late.author) is StoreResult.STORE_IS_FULL
    assert store.put(NOW, unsigned(HONEST[0], sequence=2), 0, HONEST[0]) is StoreResult.HELD


def test_the_bound_holds_for_records_that_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worst case of each table: an author, an account and a key of its own for every record."""
    # Here no PeerID comes twice. The interpreter's table of interned strings doubles, by megabytes, at a moment that
    # depends on all that was imported before.
    monkeypatch.setattr(sys, "intern", str)
    store = RecordStore(OWN)
    tracemalloc.start()
    try:
        for number in range(LIMITS.records):
            author = PeerId(f"12D3KooW author {number:047}")
            record = signed(largest(author, digest("flood", author.encode()), number), FakeSigner(author))
            received = decode(encode(record))
            assert isinstance(received, Record)
            assert store.put(NOW, received, 0, PeerId(f"12D3KooW sender {number:047}")) is StoreResult.HELD
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    print(f"{peak / LIMITS.records:.0f} bytes each")
    assert LIMITS.records * BYTES_EACH * 0.5 < peak < LIMITS.records * BYTES_EACH


def test_the_servers_own_tables_stay_within_theirs() -> None:
    """Of peers that ask and store, and of signatures that were found good."""
    remembering = CachingSigner(FakeSigner(OWN))
    server = Server(remembering, RecordStore(OWN), Table(OWN), True)
    tracemalloc.start()
    try:
        for number in range(2 * MOST_PEERS):
            peer = PeerId(f"12D3KooW flooder {number:035}")
            server.serve(NOW, peer, FindNode(KEY))
            server.serve(NOW, peer, Store((), 0))
        for number in range(REMEMBERED + 100):
            data = b"%d" % number
            assert remembering.verify(OWN, data, FakeSigner(OWN).sign(data))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    print(f"{peak >> 10} KiB")
    assert TABLES / 4 < peak < TABLES


def test_what_a_flood_leaves_behind_when_it_expires_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the whole core: short-lived records, as many as one peer may store, for minutes."""
    monkeypatch.setattr(CachingSigner.__init__, "__defaults__", (40 * STORES_A_SECOND,))
    core = Kademlia(OWN, FakeSigner(OWN), random.Random(1))
    core.set_contact(NOW, ("/ip4/203.0.113.1/tcp/4101",), True)

    def flood(begin: int, end: int) -> None:
        for second in range(begin, end):
            numbers = range(STORES_A_SECOND * second, STORES_A_SECOND * (second + 1))
            records = [
                unsigned("flooder", key_of(f"short {number}"), expires=int(NOW) + second + 2) for number in numbers
            ]
            call = Store(tuple(signed(record, FakeSigner(record.author)) for record in records), 0)
            answer, _ = core.serve(NOW + second, FLOODERS[0], decode(encode(call), FLOODERS[0], tags=NODE_TAGS))
            assert answer == Stored((StoreResult.HELD,) * STORES_A_SECOND)

    tracemalloc.start()
    try:
        flood(0, 60)  # more than the signatures that are remembered
        before, _ = tracemalloc.get_traced_memory()
        flood(60, 180)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    print(f"{(after - before) >> 10} KiB more")
    assert core.records_held <= 3 * STORES_A_SECOND
    assert after - before < 120 * STORES_A_SECOND * BYTES_EACH / 10
