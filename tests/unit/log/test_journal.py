"""The journal of log and votes: what a file says after it was torn, spoiled or shortened."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.protocol.log.journal import HEAD, Journal, first_register, framed, read, shortened
from shoal.protocol.log.register import after, voters_root
from shoal.protocol.log.shortcuts import START
from shoal.protocol.log.trust import Crash
from shoal.protocol.messages.log import Decided, Shortcut, VoteFile
from tests.simulation.log_search import rules_of
from tests.simulation.log_worlds import PEERS, register_of
from tests.unit.log.test_core import Swarm, newcomer

A = PEERS[0]
REGISTER = register_of(1, 1)
RULES = rules_of(Crash, A)


def decided(count: int) -> tuple[Decided, ...]:
    swarm = Swarm(REGISTER)
    for number in range(count):
        swarm.do(A, lambda core, n=number: core.submit(newcomer(n)))  # type: ignore[misc]
    return swarm.cores[A].log


ENTRIES = decided(3)
EARLIER, VOTES = (VoteFile(1, voters_root(REGISTER), 1, number, None, None) for number in (1, 4))
RECORDS = (REGISTER, EARLIER, *ENTRIES, VOTES)
WHOLE = b"".join(framed(record) for record in RECORDS)


def test_what_was_appended_is_read() -> None:
    journal = read(WHOLE, RULES)
    assert (journal.entries, journal.votes, journal.length, journal.is_damaged) == (ENTRIES, VOTES, len(WHOLE), False)
    assert journal.register is not None
    assert journal.register.number == 3
    assert read(b"", RULES) == Journal(None, START, None, (), {}, None, 0, False)


@given(st.integers(0, len(WHOLE) - 1))
def test_a_torn_tail_is_cut_off_and_nothing_before_it_is_lost(length: int) -> None:
    journal = read(WHOLE[:length], RULES)
    assert not journal.is_damaged
    assert journal.length <= length
    assert length - journal.length < max(len(framed(each)) for each in RECORDS)
    assert journal.entries == ENTRIES[: len(journal.entries)]
    next_record = EARLIER if journal.register is not None else REGISTER
    assert not read(WHOLE[: journal.length] + framed(next_record), RULES).is_damaged


@settings(max_examples=300)
@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 7))
def test_a_flipped_bit_never_gives_a_wrong_entry_nor_the_vote_of_a_spoiled_file(place: int, bit: int) -> None:
    spoiled = bytearray(WHOLE)
    spoiled[place] ^= 1 << bit
    journal = read(bytes(spoiled), RULES)
    assert journal.is_damaged
    assert journal.entries == ENTRIES[: len(journal.entries)]
    assert journal.votes is None


def test_a_tail_of_zeros_was_never_written() -> None:
    journal = read(WHOLE + bytes(500), RULES)
    assert (journal.votes, journal.length, journal.is_damaged) == (VOTES, len(WHOLE), False)


def test_damage_is_told_from_a_torn_tail() -> None:
    last = len(framed(VOTES))
    spoiled = bytearray(WHOLE)
    spoiled[-1] ^= 1
    assert read(bytes(spoiled), RULES).is_damaged
    assert not read(WHOLE[:-1], RULES).is_damaged
    assert read(WHOLE[:-last] + b"\xff" * (HEAD + 9), RULES).is_damaged
    assert read(framed(VOTES), RULES).is_damaged


def test_a_vote_on_what_follows_entries_that_are_not_there_does_not_count() -> None:
    journal = read(b"".join(framed(record) for record in (REGISTER, *ENTRIES[:2], VOTES)), RULES)
    assert (journal.is_damaged, journal.votes, journal.entries) == (True, None, ENTRIES[:2])


def test_entries_that_do_not_follow_are_damage() -> None:
    records = (REGISTER, ENTRIES[0], ENTRIES[2], VOTES)
    assert read(b"".join(framed(record) for record in records), RULES).is_damaged


def way_to(number: int) -> Shortcut:
    register = REGISTER
    for each in ENTRIES[:number]:
        register = after(register, each.entry, RULES)
    return Shortcut(register.branch, 0, True, START, register)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_shortened_journal_says_the_same(number: int) -> None:
    whole = read(WHOLE, RULES)
    content, places = shortened(WHOLE, whole.places, way_to(number), VOTES)
    journal = read(content, RULES)
    assert (journal.register, journal.votes) == (whole.register, VOTES)
    assert journal.entries == ENTRIES[number:]
    assert places == journal.places
    assert first_register(content) == way_to(number).register
    assert shortened(content, places, way_to(number), VOTES) == (content, places), "it begins there already"
    assert shortened(content, places, way_to(1), VOTES) == (content, places) or number == 1, "or later"


def test_the_first_register_is_read_alone() -> None:
    assert first_register(WHOLE) == REGISTER
    assert first_register(b"") is first_register(WHOLE[:5]) is first_register(framed(VOTES)) is None
