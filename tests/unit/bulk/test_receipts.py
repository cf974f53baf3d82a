"""Receipts: what arrived is forgotten, and nothing else."""

from __future__ import annotations

import pytest

from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.wire import MEMORY_UNIT
from shoal.protocol.messages.bulk import Flow
from shoal.protocol.net.bulk.backlog import QueuedPayload
from shoal.protocol.net.bulk.flow_control import GRAIN, MOST, Received, Unacknowledged
from tests.unit.bulk.kit import load, parts

MIB = 1 << 20


def queued() -> QueuedPayload:
    return QueuedPayload(Flow.SCATTER, 0, lambda: parts(load(1)), lambda size: None, lambda reason: None)


def test_what_the_other_end_has_is_forgotten_in_its_order() -> None:
    unheard, payloads = Unacknowledged(), [queued() for _ in range(5)]
    for each in payloads[:4]:
        unheard.add(each, MIB)
    for taken, rest in ((0, payloads[:4]), (1, payloads[1:4]), (3, payloads[3:4]), (3, payloads[3:4])):
        unheard.hear(taken)
        assert unheard.payloads() == rest
    unheard.add(payloads[4], MIB)
    assert unheard.payloads() == payloads[3:]
    unheard.hear(5)
    assert not unheard.payloads()


@pytest.mark.parametrize("taken", [1, 4, 2**64 - 1])
def test_who_says_to_have_what_was_not_sent_or_to_have_lost_some_is_not_believed(taken: int) -> None:
    unheard = Unacknowledged()
    for _ in range(3):
        unheard.add(queued(), MIB)
    unheard.hear(2)
    with pytest.raises(TransportError, match="took"):
        unheard.hear(taken)
    assert len(unheard.payloads()) == 1


def test_a_word_is_due_for_each_grain() -> None:
    taken = Received()
    assert [taken.add(GRAIN // 2), taken.add(GRAIN // 2 - MEMORY_UNIT), taken.add(1)] == [False, False, True]
    assert taken.add(1), "until it is said"
    taken.told()
    assert not taken.add(GRAIN - MEMORY_UNIT)
    assert taken.add(GRAIN)
    assert taken.count == 6


@pytest.mark.parametrize("size", [1, 1000, MEMORY_UNIT + 1, MIB, 16 * MIB])
def test_what_nobody_spoke_of_is_bounded_and_is_spoken_of_long_before(size: int) -> None:
    unheard, taken, told = Unacknowledged(), Received(), 0
    while not unheard.is_full:
        unheard.add(queued(), size)
        if taken.add(size):
            taken.told()
            told = taken.count
    kept = len(unheard.payloads())
    assert kept <= MOST // MEMORY_UNIT
    assert (kept - 1) * size < MOST
    unheard.hear(told)
    assert not unheard.is_full, "as few are left as are not worth a word"
    assert len(unheard.payloads()) == kept - told < GRAIN // MEMORY_UNIT
