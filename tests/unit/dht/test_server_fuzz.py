"""Whatever bytes a stranger sends: it gets a valid answer, or blame and nothing changes; and no forged record."""

from __future__ import annotations

from typing import Any

import msgpack
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.dht.keys import COPIES, K, node_id, place
from shoal.dht.record import CachingSigner, check_record
from shoal.dht.server import Server
from shoal.dht.store import RecordStore
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import NODE_TAGS, Message, decode, encode
from shoal.protocol.messages.dht import (
    Contact,
    FindNode,
    FindRecords,
    Nodes,
    Record,
    Records,
    Store,
    Stored,
    StoreResult,
    TryMe,
)
from shoal.protocol.messages.node import GetManifest, Refused
from tests.unit.dht.record_kit import ALICE, BOB, CAROL, HOUR, KEY, NOW, key_of, signed_record, signer_of

HELD = signed_record(sequence=2)
NEW = [signed_record(BOB, value=b"new"), signed_record(sequence=3), signed_record(subkey="x", expires=NOW + 1)]
REAL = [HELD, *NEW, signed_record(sequence=1), signed_record(expires=NOW - 1)]
CALLS: list[Message] = [
    FindNode(KEY),
    FindRecords(KEY, 0, ((ALICE.peer, ""), (BOB.peer, "x"))),
    FindRecords(KEY, 2, ()),
    Store(tuple(REAL), 1),
    Store((NEW[0],), 0),
    TryMe(("/ip4/192.0.2.1/tcp/4101",)),
    GetManifest("0123456789"),
]
ANSWERS = (Nodes, Records, Stored, Refused)
SIGNER = CachingSigner(signer_of(CAROL))
CROWD = [Contact(PeerId(f"server {number}"), ("/ip4/192.0.2.1/tcp/4101",)) for number in range(40)]


def contents(store: RecordStore) -> tuple[int, tuple[Record, ...]]:
    return len(store), store.find(NOW, KEY, (), 1 << 20)[0]


class Others:
    """The other servers that a node knows; no more of them near any place than chance allows."""

    def __init__(self, known: list[Contact]) -> None:
        self._known = known

    def closest(self, target: int, count: int) -> list[Contact]:
        return sorted(self._known, key=lambda each: node_id(each.peer) ^ target)[:count]

    def expected(self, distance: int) -> float:
        return float(len(self._known))


def is_far(record: Record, copy: int) -> bool:
    """Whether K of the crowd are nearer to where the record belongs."""
    target = int.from_bytes(place(record.key, copy), "big")
    return sum(node_id(each.peer) ^ target < node_id(CAROL.peer) ^ target for each in CROWD) >= K


def ask(data: bytes) -> Message | None:
    """The server's answers to `data`, in a small and in a large network; None for blame."""
    answer, crowded = ask_one(data, []), ask_one(data, CROWD)
    assert type(answer) is type(crowded)
    if isinstance(answer, Stored) and isinstance(crowded, Stored):
        call = decode(data)
        assert isinstance(call, Store)
        for record, alone, other in zip(call.records, answer.results, crowded.results, strict=True):
            is_over = alone is StoreResult.EXPIRED
            assert (other is StoreResult.TOO_FAR) == (is_far(record, call.copy) and not is_over)
    return answer


def ask_one(data: bytes, known: list[Contact]) -> Message | None:
    """The answer of one server; all promises are checked."""
    store = RecordStore(CAROL.peer)
    store.put(NOW, HELD, 0, ALICE.peer)
    server = Server(SIGNER, store, Others(known), True)
    before = contents(store)
    try:
        answer = server.serve(NOW, BOB.peer, decode(data, BOB.peer, tags=NODE_TAGS))
    except RemoteError as error:
        blamed = error.peer
    else:
        assert isinstance(answer, ANSWERS)
        assert decode(encode(answer), CAROL.peer, tags=NODE_TAGS) == answer
        for record in contents(store)[1]:
            check_record(record, NOW, SIGNER, BOB.peer)
        assert len(store) == len(contents(store)[1])  # what is held is held where it belongs
        return answer
    assert blamed == BOB.peer
    assert contents(store) == before
    return None


def test_the_calls_that_the_fuzzing_starts_from_are_answered() -> None:
    assert [type(ask(encode(call))) for call in CALLS[:5]] == [Nodes, Records, Records, Stored, Stored]
    assert [ask(encode(call)) for call in CALLS[5:]] == [None, None]
    assert [is_far(HELD, copy) for copy in range(COPIES)] == [False, True, False]


@given(st.binary(max_size=300))
def test_random_bytes_are_blamed(data: bytes) -> None:
    assert ask(data) is None


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A call with a few bytes changed, put in or left out."""
    data = bytearray(encode(draw(st.sampled_from(CALLS))))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data) - 1))
        end = min(len(data), start + draw(st.integers(0, 3)))
        data[start:end] = draw(st.binary(max_size=3))
    return bytes(data)


@given(damaged())
@settings(max_examples=400)
def test_a_damaged_call_is_answered_or_blamed(data: bytes) -> None:
    ask(data)


number = st.integers(0, 2**63 - 1) | st.integers(0, 4)
text = st.text(max_size=70)
peer = text | st.sampled_from([ALICE.peer, BOB.peer])
key = st.sampled_from([KEY, key_of("other")]) | st.binary(min_size=32, max_size=32)
made_up = st.builds(
    Record,
    key=key,
    author=peer,
    subkey=text,
    value=st.binary(max_size=40),
    sequence=number,
    expires=st.integers(NOW - 1, NOW + HOUR) | number,
    signature=st.binary(max_size=65),
)


@given(st.lists(made_up | st.sampled_from(REAL), max_size=40), number)
def test_a_store_with_one_made_up_record_changes_nothing(records: list[Record], copy: int) -> None:
    answer = ask(encode(Store(tuple(records), copy)))
    in_turn = isinstance(answer, Stored) and len(answer.results) == len(records)
    assert in_turn if answer else (copy > 2 or len(records) > 32 or any(record not in REAL for record in records))
    live = [record for record in records if record not in REAL and record.expires > NOW]
    assert not (answer and live)


@given(key, number, st.lists(st.tuples(peer, text), max_size=70))
@example(KEY, 0, [(PeerId(""), "")])
def test_a_question_of_any_shape_is_answered_or_blamed(key: Any, copy: int, subkeys: list[tuple[PeerId, str]]) -> None:
    answer = ask(encode(FindRecords(key, copy, tuple(subkeys))))
    assert (answer is None) == (copy > 2 or len(subkeys) > 64)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**64 - 1) | st.floats() | st.text(max_size=9) | st.binary(max_size=33),
    lambda inner: st.lists(inner, max_size=7),
    max_leaves=25,
)


@given(st.sampled_from(sorted(NODE_TAGS)), st.lists(ANYTHING, max_size=7))
@settings(max_examples=150)
def test_any_fields_under_a_known_tag_are_answered_or_blamed(tag: int, fields: list[Any]) -> None:
    ask(msgpack.packb([tag, *fields]))
