"""A record is believed if its author signed it, as it stands, for now; whoever shows another one is blamed."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.dht.record import (
    MAX_LIFE,
    MAX_SEQUENCE,
    MAX_SKEW,
    MAX_SUBKEY,
    MAX_VALUE,
    CachingSigner,
    Expired,
    check_record,
    rank,
)
from shoal.protocol.base.errors import LocalError, RemoteError
from shoal.protocol.base.ids import PeerId, RunId
from shoal.protocol.base.wire import decode, encode
from shoal.protocol.messages.dht import Record
from tests.unit.dht.record_kit import ALICE, BOB, CAROL, HOUR, NOW, key_of, signed_record, signer_of

GOOD = signed_record(subkey="x" * MAX_SUBKEY, value=bytes(MAX_VALUE), sequence=MAX_SEQUENCE)


class Counting:
    """A signer that counts what it verifies."""

    def __init__(self) -> None:
        self._signer = signer_of(BOB)
        self.peer = self._signer.peer
        self.verified = 0

    def sign(self, data: bytes) -> bytes:
        return self._signer.sign(data)

    def verify(self, author: PeerId, data: bytes, signature: bytes) -> bool:
        self.verified += 1
        return self._signer.verify(author, data, signature)


def check(record: Record, now: float = NOW) -> None:
    check_record(record, now, signer_of(BOB), CAROL.peer)


def test_a_record_at_every_limit_is_believed() -> None:
    check(GOOD)
    check(GOOD, NOW + HOUR - 0.5)
    check(signed_record(expires=NOW + MAX_LIFE + MAX_SKEW))  # of an author whose clock is fast


FORGED = [
    pytest.param({"value": b"elsewhere"}, id="value"),
    pytest.param({"key": key_of("other")}, id="key"),
    pytest.param({"subkey": "other"}, id="subkey"),
    pytest.param({"sequence": 2}, id="sequence"),
    pytest.param({"expires": NOW + HOUR + 1}, id="expires"),
    pytest.param({"author": BOB.peer}, id="author"),
    pytest.param({"author": PeerId("nobody")}, id="no-peer-id"),
    pytest.param({"signature": b""}, id="unsigned"),
    pytest.param({"signature": bytes(64)}, id="zeros"),
]


@pytest.mark.parametrize("change", FORGED)
def test_what_its_author_did_not_sign_is_blamed_on_who_shows_it(change: dict) -> None:
    with pytest.raises(RemoteError, match="forged") as caught:
        check(dataclasses.replace(signed_record(), **change))
    assert caught.value.peer == CAROL.peer


def test_a_signature_of_a_run_means_nothing_here() -> None:
    record = dataclasses.replace(signed_record(), signature=b"")
    in_a_run = ALICE.signer(RunId(bytes(32))).sign(encode(record))
    with pytest.raises(RemoteError, match="forged"):
        check(dataclasses.replace(record, signature=in_a_run))


BAD = [
    pytest.param({"value": bytes(MAX_VALUE + 1)}, "value of 1025 bytes", id="value"),
    pytest.param({"subkey": "x" * (MAX_SUBKEY + 1)}, "subkey of 65 characters", id="subkey"),
    pytest.param({"author": PeerId("")}, "no PeerID", id="no-author"),
    pytest.param({"author": PeerId("1" * 65)}, "no PeerID", id="long-author"),
    pytest.param({"signature": bytes(65)}, "signature of 65 bytes", id="signature"),
    pytest.param({"sequence": MAX_SEQUENCE + 1}, "nobody gets to", id="sequence"),
    pytest.param({"expires": NOW + MAX_LIFE + MAX_SKEW + 1}, "would last", id="far-future"),
    pytest.param({"expires": NOW}, "expired 0 s ago", id="expired"),
    pytest.param({"expires": 0}, "expired", id="long-over"),
]


@pytest.mark.parametrize(("change", "sentence"), BAD)
def test_the_cheap_checks_come_before_the_signature(change: dict, sentence: str) -> None:
    counting = Counting()
    with pytest.raises(RemoteError, match=sentence) as caught:
        check_record(dataclasses.replace(GOOD, **change), NOW, counting, CAROL.peer)
    assert caught.value.peer == CAROL.peer
    assert isinstance(caught.value, Expired) == ("expired" in sentence)
    assert not counting.verified


def test_our_own_mistake_is_ours() -> None:
    with pytest.raises(LocalError, match="value of 1025 bytes"):
        signed_record(value=bytes(MAX_VALUE + 1))


def test_versions_are_ordered_by_sequence_then_by_expiry_then_by_their_hash() -> None:
    older, newer = signed_record(sequence=1, expires=NOW + 9), signed_record(sequence=2, expires=NOW + 1)
    longer = signed_record(sequence=1, expires=NOW + 10)
    assert rank(older) < rank(longer) < rank(newer)
    one, other = signed_record(value=b"one"), signed_record(value=b"other")
    assert rank(one) != rank(other)
    assert rank(one) == rank(signed_record(value=b"one"))


def test_a_signature_is_checked_once_and_a_bad_one_every_time() -> None:
    counting = Counting()
    remembering = CachingSigner(counting, most=2)
    first, second, third = (signed_record(sequence=number) for number in (1, 2, 3))
    for record in (first, first, second, first, third, first):
        check_record(record, NOW, remembering, CAROL.peer)
    assert counting.verified == 3
    check_record(second, NOW, remembering, CAROL.peer)  # two others were used later
    assert counting.verified == 4
    forged = dataclasses.replace(third, value=b"forged")
    for _ in range(2):
        with pytest.raises(RemoteError, match="forged"):
            check_record(forged, NOW, remembering, CAROL.peer)
    assert counting.verified == 6
    assert repr(remembering) == "CachingSigner(2 of 2)"


def test_who_remembers_signs_as_before() -> None:
    remembering = CachingSigner(signer_of(ALICE))
    assert remembering.peer == ALICE.peer
    assert remembering.sign(b"data") == signer_of(ALICE).sign(b"data")


# -- the decoder --------------------------------------------------------------------------------------------


def believed(data: bytes) -> bool:
    """Whether `data` is the good record; if not, decoder or check blame who sent it."""
    try:
        record = decode(data, CAROL.peer)
        if isinstance(record, Record):
            check(record)
    except RemoteError as error:
        blamed = error.peer
    else:
        return record == GOOD
    assert blamed == CAROL.peer
    return False


@given(st.binary(max_size=400))
def test_random_bytes_are_no_record(data: bytes) -> None:
    assert not believed(data)


@given(st.data())
def test_a_damaged_record_is_refused(data: st.DataObject) -> None:
    damaged = bytearray(encode(GOOD))
    for where in data.draw(st.lists(st.integers(0, len(damaged) - 1), min_size=1, max_size=3)):
        damaged[where] = data.draw(st.integers(0, 255))
    assert believed(bytes(damaged)) == (bytes(damaged) == encode(GOOD))


@given(
    st.builds(
        Record,
        key=st.binary(min_size=32, max_size=32),
        author=st.text(max_size=70) | st.sampled_from([ALICE.peer, BOB.peer]),
        subkey=st.text(max_size=70),
        value=st.binary(max_size=20),
        sequence=st.integers(0, 2**63 - 1),
        expires=st.integers(0, 2**63 - 1) | st.integers(NOW - 10, NOW + 10),
        signature=st.binary(max_size=70),
    )
)
def test_no_record_that_was_made_up_is_believed(record: Record) -> None:
    assert not believed(encode(record))
