"""A run's directory: when it is written and read, and which entries are believed."""

from __future__ import annotations

import random

import pytest

from shoal.dht.directory import (
    MEMBER,
    MIN_WRITE_PAUSE,
    PAUSES_WHILE_CUT,
    RENEW_EVERY,
    RETRY_PAUSES,
    Evidence,
    ListedMember,
    Schedule,
    members_in,
    read_entry,
)
from shoal.dht.effects import Found
from shoal.protocol.base.ids import NO_DIGEST, Digest, PeerId, RunId, digest
from shoal.protocol.base.wire import Message, encode
from shoal.protocol.membership.vetting import MAX_ADDRESSES
from shoal.protocol.messages.dht import Record
from shoal.protocol.messages.directory import ManifestEntry, MemberEntry, RunNotice
from shoal.protocol.messages.node import Refused

HERE = ("/ip4/192.0.2.1/tcp/4101",)
THERE = ("/ip4/192.0.2.2/tcp/4101",)
ANNA, BERT, CARL, EVE = (PeerId(name) for name in ("anna", "bert", "carl", "eve"))
OURS, OTHER = digest("test", b"ours"), digest("test", b"other")


def found(value: Message | bytes, author: PeerId = ANNA, subkey: str = MEMBER) -> Found:
    plain = value if isinstance(value, bytes) else encode(value)
    return Found(Record(Digest(bytes(32)), author, subkey, plain, 7, 2**31, b""), 2)


def listed(peer: PeerId, sequence: int, history: Digest = OURS, round: int = 5) -> ListedMember:
    return ListedMember(peer, sequence, MemberEntry(HERE, round, history))


# -- what it says -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xc1",
        Refused("no entry"),
        MemberEntry(HERE * (MAX_ADDRESSES + 1), 1, OURS),
        MemberEntry(("/ip4/" + "x" * 300,), 1, OURS),
    ],
)
def test_what_is_withdrawn_or_nonsense_is_not_read(value: Message | bytes) -> None:
    assert read_entry(found(value)) is None
    assert members_in([found(value), found(MemberEntry(HERE, 5, OURS), BERT)]) == [listed(BERT, 7)]


def test_only_members_are_members() -> None:
    notice = RunNotice(RunId(bytes(32)), "x", 1, 1, HERE)
    assert members_in([found(ManifestEntry(RunId(bytes(32)), HERE)), found(notice)]) == []
    assert members_in([found(MemberEntry(HERE, 5, OURS), subkey="another")]) == []


# -- when ---------------------------------------------------------------------------------------------------


def test_an_entry_is_written_at_once_and_then_at_a_third_of_its_life() -> None:
    schedule = Schedule(random.Random(1))
    assert schedule.must_write(100.0, HERE, cut=False)
    schedule.wrote(100.0, HERE, held=True)
    assert not schedule.must_write(100.0 + 0.8 * RENEW_EVERY, HERE, cut=False)
    assert schedule.must_write(100.0 + RENEW_EVERY, HERE, cut=False)


def test_who_has_moved_says_so_soon_but_not_all_the_time() -> None:
    schedule = Schedule(random.Random(1))
    schedule.wrote(100.0, HERE, held=True)
    assert not schedule.must_write(100.0 + MIN_WRITE_PAUSE / 2, THERE, cut=False)
    assert schedule.must_write(100.0 + MIN_WRITE_PAUSE, THERE, cut=False)


def test_what_nobody_took_is_written_again_with_growing_pauses() -> None:
    schedule, now, pauses = Schedule(random.Random(1)), 0.0, []
    for _ in range(8):
        schedule.wrote(now, HERE, held=False)
        begin = now
        while not schedule.must_write(now, HERE, cut=False):
            now += 0.5
        pauses.append(now - begin)
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60]
    schedule.wrote(now, HERE, held=True)
    assert not schedule.must_write(now + RETRY_PAUSES[1], HERE, cut=False)


def test_while_much_of_the_run_is_missed_both_are_done_often() -> None:
    schedule = Schedule(random.Random(1))
    schedule.wrote(0.0, HERE, held=True)
    schedule.read(0.0)
    assert schedule.must_read(0.0, alone=False, lost=3, cut=True)
    schedule.read(0.0)
    assert not schedule.must_write(PAUSES_WHILE_CUT[0] - 1, HERE, cut=True)
    assert schedule.must_write(PAUSES_WHILE_CUT[0], HERE, cut=True)
    assert not schedule.must_read(PAUSES_WHILE_CUT[1] - 1, alone=False, lost=3, cut=True)
    assert schedule.must_read(PAUSES_WHILE_CUT[1], alone=False, lost=3, cut=True)


def test_it_is_read_at_the_start_when_somebody_is_lost_and_now_and_then() -> None:
    schedule = Schedule(random.Random(1))
    assert schedule.must_read(100.0, alone=False, lost=0, cut=False)
    schedule.read(100.0)
    assert not schedule.must_read(101.0, alone=False, lost=0, cut=False)
    assert schedule.must_read(102.0, alone=False, lost=1, cut=False)
    schedule.read(102.0)
    assert not schedule.must_read(103.0, alone=False, lost=1, cut=False)
    assert schedule.must_read(102.0 + RENEW_EVERY, alone=False, lost=1, cut=False)


def test_who_is_alone_looks_again_and_again_with_growing_pauses() -> None:
    schedule, now, pauses = Schedule(random.Random(1)), 0.0, []
    for _ in range(7):
        schedule.read(now)
        begin = now
        while not schedule.must_read(now, alone=True, lost=0, cut=False):
            now += 0.5
        pauses.append(now - begin)
    assert pauses == [4, 8, 16, 32, 60, 60, 60]


# -- what it proves -----------------------------------------------------------------------------------------


def weigh(evidence: Evidence, rows: list[ListedMember], lost: list[PeerId]) -> None:
    evidence.weigh(rows, lost, {5: OURS}.get)


def test_the_dead_write_nothing_and_prove_nothing() -> None:
    evidence = Evidence()
    for _ in range(5):
        weigh(evidence, [listed(ANNA, 10), listed(BERT, 10)], [ANNA, BERT])
        assert not evidence.elsewhere
    weigh(evidence, [], [ANNA, BERT])  # their entries have expired
    assert not evidence.elsewhere


def test_who_was_lost_and_has_written_since_is_elsewhere_until_it_is_back() -> None:
    evidence = Evidence()
    weigh(evidence, [listed(ANNA, 10), listed(BERT, 10), listed(CARL, 10)], [])
    weigh(evidence, [listed(ANNA, 20), listed(BERT, 20), listed(CARL, 20)], [ANNA, BERT])  # written before it was lost
    assert not evidence.elsewhere
    weigh(evidence, [listed(ANNA, 30), listed(BERT, 20), listed(CARL, 30)], [ANNA, BERT])
    assert list(evidence.elsewhere) == [ANNA]
    weigh(evidence, [listed(ANNA, 30), listed(BERT, 30)], [ANNA, BERT])
    assert list(evidence.elsewhere) == [ANNA, BERT]
    evidence.still_lost([BERT, CARL])
    assert list(evidence.elsewhere) == [BERT]
    weigh(evidence, [listed(ANNA, 30), listed(BERT, 30)], [])
    assert not evidence.elsewhere


@pytest.mark.parametrize(
    ("row", "conflict"),
    [
        (listed(ANNA, 1, OURS), False),
        (listed(ANNA, 1, OTHER), True),
        (listed(ANNA, 1, OTHER, round=6), False),  # we have not decided that round
        (listed(ANNA, 1, NO_DIGEST), False),  # it had no state yet
        (listed(BERT, 1, OTHER), False),  # whom membership sees: that was before, and it tells us itself where it is
        (listed(EVE, 1, OTHER), False),  # who was never a member may write what it likes
    ],
)
def test_another_history_counts_only_where_it_can_be_compared(row: ListedMember, conflict: bool) -> None:
    evidence = Evidence()
    weigh(evidence, [row], [ANNA])
    assert bool(evidence.apart) is conflict
    evidence.still_lost([])
    assert not evidence.apart
