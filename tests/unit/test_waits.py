"""Whom a round waited for is in its record: the late, not everybody, and whether it was we."""

from __future__ import annotations

from shoal.node.records import CommitLog
from shoal.node.waits import MOST, WORTH_TELLING, Waits
from shoal.protocol.ids import PeerId
from tests.unit.test_outgoing import ME, OTHER, decision

LATE, LATER = PeerId("late"), PeerId("later")


def test_the_latest_comes_first_and_a_moment_is_not_worth_telling() -> None:
    waits = Waits()
    for _ in range(10):
        waits.note([LATE, LATER], WORTH_TELLING / 10 + 0.01)
    waits.note([LATER, OTHER], WORTH_TELLING / 2)
    assert list(waits.longest()) == [LATER, LATE]
    waits.note([LATER], 10 * WORTH_TELLING)
    assert list(waits.longest()) == [LATER]  # beside that, the other was not late
    waits.note([PeerId(str(number)) for number in range(100)], 60.0)
    assert len(waits.longest()) == MOST


def test_a_record_says_whom_its_round_waited_for_and_the_next_begins_anew() -> None:
    commits = CommitLog()
    commits.waits.note([OTHER], 3.21)
    commits.waits.called = True
    first = commits.add(decision(7), ME, 2.0, 0)
    second = commits.add(decision(8), ME, 4.0, 0)
    assert (first.waited_for, first.called, first.samples) == ({OTHER: 3.2}, True, 10)
    assert (second.waited_for, second.called) == ({}, False)
    assert [record["round"] for record in commits.as_json(1)] == [8]
    assert commits.as_json(9) == commits.as_json()
