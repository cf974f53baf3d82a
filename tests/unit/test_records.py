"""The records that a node keeps of very many rounds stay small, and a part of them can be asked for."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.node.run import records
from shoal.node.run.phases import PhaseLog
from shoal.node.run.records import CommitLog, Validation
from shoal.protocol.averaging.shelf import Decision
from shoal.protocol.base.ids import NO_DIGEST
from tests.unit.test_outgoing import ME, decision


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> CommitLog:
    """The log of 20 rounds, of which it keeps ten, four in full."""
    monkeypatch.setattr(records, "KEPT", 10)
    monkeypatch.setattr(records, "DETAILED", 4)
    commits = CommitLog()
    for number in range(1, 21):
        phases = PhaseLog()
        phases.observe(0.0, "reducing", lambda: [ME])
        commits.sent(number, 100 + number)
        commits.submitted(0.5)
        commits.add(decision(number), NO_DIGEST, ME, 1.0, 0, phases, samples=number)
    return commits


def test_the_older_rounds_keep_their_figures_only(commits: CommitLog) -> None:
    rows = commits.as_json()
    assert [row["round"] for row in rows] == list(range(11, 21))
    assert (
        [bool(row["phases"]) for row in rows] == [bool(row["waited_for"]) for row in rows] == [False] * 6 + [True] * 4
    )
    assert [row["bytes"] for row in rows] == [row["samples"] + 100 for row in rows] == list(range(111, 121))
    assert rows[-1]["phases"] == [{"phase": "reducing", "seconds": 1.0}]


def test_the_last_ones_can_be_had_alone(commits: CommitLog) -> None:
    assert [row["round"] for row in commits.as_json(3)] == [18, 19, 20]
    assert commits.as_json(99) == commits.as_json()
    assert commits.last_commit == commits.records[-1].applied_at


def test_a_validation_loss_is_in_the_record_of_its_round(commits: CommitLog) -> None:
    commits.validated(19, 2.5, 64)
    figures = {row["round"]: (row["validation_loss"], row["validation_sequences"]) for row in commits.as_json()}
    assert figures == {round: (2.5, 64) if round == 19 else (None, 0) for round in range(11, 21)}
    assert commits.validation == Validation(19, 2.5)


@pytest.mark.parametrize("round", [3, 25])
def test_a_round_without_a_record_may_be_measured_too(commits: CommitLog, round: int) -> None:
    commits.validated(round, 2.5, 8)
    assert commits.validation == Validation(round, 2.5)
    assert all(row["validation_loss"] is None for row in commits.as_json())


def decided(round: int, entry: int) -> Decision:
    return dataclasses.replace(decision(round), number=entry)


def test_the_rounds_of_a_branch_that_was_left_are_dropped_and_curves_go_on_from_the_fork() -> None:
    commits = CommitLog()
    for round in range(1, 9):
        commits.sent(round, 100)
        commits.add(decided(round, 10 + round), NO_DIGEST, ME, 1.0, 0, PhaseLog(), samples=10 * round)
        commits.validated(round, 9.0 - round, 8)
    dropped = commits.cut(15)
    assert [each.round for each in dropped] == [5, 6, 7, 8]
    assert commits.validation == Validation(4, 5.0)
    for round in (6, 7):  # the run is not as far as the branch was
        commits.sent(round, 7)
        commits.add(decided(round, 20 + round), NO_DIGEST, ME, 1.0, 0, PhaseLog(), samples=10 * round)
    commits.validated(6, 1.5, 8)
    rows = commits.as_json()
    assert [(row["round"], row["bytes"]) for row in rows] == [(1, 100), (2, 100), (3, 100), (4, 100), (6, 7), (7, 7)]
    assert [row["validation_loss"] for row in rows] == [8.0, 7.0, 6.0, 5.0, 1.5, None]
    assert commits.cut(1_000) == []
    assert commits.validation == Validation(6, 1.5)
