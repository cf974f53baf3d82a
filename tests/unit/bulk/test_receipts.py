"""Receipts: what arrived is forgotten, and nothing else."""

from __future__ import annotations

import pytest

from shoal.protocol.bulk.backlog import Parcel
from shoal.protocol.bulk.receipts import GRAIN, MOST, Taken, Unheard
from shoal.protocol.errors import TransportError
from shoal.protocol.messages.bulk import Flow
from shoal.protocol.rooms import ROUND
from tests.unit.bulk.kit import load, parts

MIB = 1 << 20


def parcel() -> Parcel:
    return Parcel(Flow.SCATTER, 0, lambda: parts(load(1)), lambda size: None, lambda reason: None)


def test_what_the_other_end_has_is_forgotten_in_its_order() -> None:
    unheard, parcels = Unheard(), [parcel() for _ in range(5)]
    for each in parcels[:4]:
        unheard.add(each, MIB)
    for taken, rest in ((0, parcels[:4]), (1, parcels[1:4]), (3, parcels[3:4]), (3, parcels[3:4])):
        unheard.hear(taken)
        assert unheard.parcels() == rest
    unheard.add(parcels[4], MIB)
    assert unheard.parcels() == parcels[3:]
    unheard.hear(5)
    assert not unheard.parcels()


@pytest.mark.parametrize("taken", [1, 4, 2**64 - 1])
def test_who_says_to_have_what_was_not_sent_or_to_have_lost_some_is_not_believed(taken: int) -> None:
    unheard = Unheard()
    for _ in range(3):
        unheard.add(parcel(), MIB)
    unheard.hear(2)
    with pytest.raises(TransportError, match="took"):
        unheard.hear(taken)
    assert len(unheard.parcels()) == 1


def test_a_word_is_due_for_each_grain() -> None:
    taken = Taken()
    assert [taken.add(GRAIN // 2), taken.add(GRAIN // 2 - ROUND), taken.add(1)] == [False, False, True]
    assert taken.add(1), "until it is said"
    taken.told()
    assert not taken.add(GRAIN - ROUND)
    assert taken.add(GRAIN)
    assert taken.count == 6


@pytest.mark.parametrize("size", [1, 1000, ROUND + 1, MIB, 16 * MIB])
def test_what_nobody_spoke_of_is_bounded_and_is_spoken_of_long_before(size: int) -> None:
    unheard, taken, told = Unheard(), Taken(), 0
    while not unheard.is_full:
        unheard.add(parcel(), size)
        if taken.add(size):
            taken.told()
            told = taken.count
    kept = len(unheard.parcels())
    assert kept <= MOST // ROUND
    assert (kept - 1) * size < MOST
    unheard.hear(told)
    assert not unheard.is_full, "as few are left as are not worth a word"
    assert len(unheard.parcels()) == kept - told < GRAIN // ROUND
