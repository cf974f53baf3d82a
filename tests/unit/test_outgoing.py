"""The cost of a round is counted in payload bytes as they are written; bytes for members that catch up are not."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import cast

from shoal.node.run.meters import Outgoing
from shoal.node.run.phases import PhaseLog
from shoal.node.run.records import CommitLog
from shoal.protocol.averaging.rounds import Rounds
from shoal.protocol.averaging.shelf import Decision
from shoal.protocol.base.ids import NO_DIGEST, PeerId
from shoal.protocol.messages.averaging import Contribution, Made, Mean
from shoal.protocol.messages.log import Result
from shoal.protocol.messages.replicas import Chunk
from shoal.protocol.messages.transfer import StateChunk

ME, OTHER = PeerId("me"), PeerId("other")
MADE = Made(NO_DIGEST, b"\x03", 0, OTHER, 1, b"")


def rounds(round: int) -> Rounds:
    """In a round of which we know the roster, and that of the round before."""
    rosters = {round: (ME, OTHER), round - 1: (ME, OTHER)}
    known = SimpleNamespace(roster=lambda round: rosters.get(round, ()))
    return cast(Rounds, known)


def contribution(round: int, chunk: int) -> Contribution:
    return Contribution(0, round, chunk, 0, 5, NO_DIGEST, bytes(100))


def mean(round: int, size: int = 30) -> Mean:
    return Mean(0, round, 0, MADE, bytes(size))


def decision(round: int) -> Decision:
    result = Result(0, round, 9, NO_DIGEST, NO_DIGEST, b"\x03", (5, 5), ())
    return Decision(10, result, (ME, OTHER), (MADE,), (b"",))


def test_payloads_are_counted_for_their_round() -> None:
    commits = CommitLog()
    outgoing = Outgoing(commits)
    outgoing.sent(OTHER, contribution(7, 1), rounds(7))
    outgoing.sent(OTHER, mean(7), rounds(7))
    record = commits.add(decision(7), NO_DIGEST, ME, 2.0, outgoing.resent, PhaseLog(), 0)
    assert (record.members, record.contributors, record.took_part, record.entry) == (2, 2, True, 10)
    assert [each["bytes"] for each in commits.as_json()] == [130]


def test_what_leaves_after_the_round_still_counts_but_catching_up_does_not() -> None:
    commits = CommitLog()
    outgoing = Outgoing(commits)
    commits.add(decision(7), NO_DIGEST, ME, 2.0, 0, PhaseLog(), 0)
    outgoing.sent(OTHER, contribution(7, 1), rounds(8))
    outgoing.sent(OTHER, mean(7), rounds(8))
    outgoing.sent(PeerId("newcomer"), mean(7), rounds(8))
    outgoing.sent(OTHER, StateChunk(0, 6, 0, bytes(1000)), rounds(8))
    assert commits.as_json()[0]["bytes"] == 130


def test_what_is_contributed_twice_in_a_round_is_sent_again() -> None:
    outgoing = Outgoing(CommitLog())
    for chunk in (1, 2, 1):
        outgoing.sent(OTHER, contribution(7, chunk), rounds(7))
    assert outgoing.resent == 100
    outgoing.sent(OTHER, contribution(8, 1), rounds(8))
    assert outgoing.resent == 0


def test_of_a_replica_each_pairing_is_counted_by_itself() -> None:
    outgoing = Outgoing(CommitLog())
    for number, chunk in ((3, 0), (3, 0), (4, 0)):
        outgoing.sent(OTHER, Chunk(7, number, chunk, bytes(10)), rounds(7))
    assert outgoing.resent == 0


def test_the_time_of_a_round_begins_with_the_first_submission() -> None:
    commits = CommitLog()
    for now in (1.0, 2.0):
        commits.submitted(now)
    assert commits.add(decision(7), NO_DIGEST, ME, 4.0, 0, PhaseLog(), 0).seconds == 3.0
    assert commits.add(decision(8), NO_DIGEST, ME, 9.0, 0, PhaseLog(), 0).seconds == 0.0  # we only followed


def test_a_record_says_where_the_time_went_and_how_the_training_did() -> None:
    commits, phases = CommitLog(), PhaseLog()
    for now, phase in ((1.0, "training"), (3.0, "reducing")):
        phases.observe(now, phase, lambda: [OTHER])
    commits.submitted(3.0, tokens=100, loss=2.5)
    record = commits.add(decision(7), NO_DIGEST, ME, 4.0, 0, phases, samples=900)
    assert (record.tokens, record.loss, record.samples) == (100, 2.5, 900)
    row = commits.as_json()[0]
    assert row["phases"] == [{"phase": "training", "seconds": 2.0}, {"phase": "reducing", "seconds": 1.0}]
    assert row["waited_for"] == {OTHER: 3.0}
    json.dumps(row, allow_nan=False)
    commits.submitted(5.0, tokens=100, loss=math.nan)
    assert commits.add(decision(8), NO_DIGEST, ME, 6.0, 0, phases, samples=900).loss is None  # NaN is no JSON
    assert commits.add(decision(9), NO_DIGEST, ME, 7.0, 0, phases, samples=900).tokens == 0  # we only followed
