"""The cost of a round is counted in payload bytes as they are written; bytes for members that catch up are not."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import cast

from shoal.node.base.fault_injection import Fault, FaultTrigger
from shoal.node.run.meters import Outgoing
from shoal.node.run.phases import PhaseLog
from shoal.node.run.records import CommitLog
from shoal.protocol.base.ids import NO_DIGEST, PeerId
from shoal.protocol.messages.rounds import ChunkRef, Contribution, Fetched, Final, Proposal
from shoal.protocol.messages.transfer import StateChunk
from shoal.protocol.rounds.allreduce.shelf import Decision
from shoal.protocol.rounds.attempt import Attempt

ME, OTHER = PeerId("me"), PeerId("other")


def attempt(round: int, number: int = 1) -> Attempt:
    plan = SimpleNamespace(round=round, owners=(ME, OTHER, OTHER), leader=OTHER)
    return cast(Attempt, SimpleNamespace(number=number, plan=plan, owns_any=lambda: True))


def contribution(round: int, chunk: int, number: int = 1) -> Contribution:
    return Contribution(round, 0, number, chunk, (0, 0), bytes(100))


def decision(round: int) -> Decision:
    members, mask = (ME, OTHER), b"\x03"
    proposal = Proposal(round, 0, 1, NO_DIGEST, NO_DIGEST, NO_DIGEST, members, (5, 5), members, 10)
    certificate = SimpleNamespace(proposal=proposal)
    return Decision(certificate, (ChunkRef(NO_DIGEST, mask),), (b"",))  # type: ignore[arg-type]


def test_payloads_are_counted_for_their_round() -> None:
    commits = CommitLog()
    outgoing = Outgoing(ME, commits, None)
    outgoing.sent(contribution(7, 1), attempt(7))
    outgoing.sent(Final(7, 0, 1, 0, (0, 0), b"\x03", bytes(30)), attempt(7))
    outgoing.sent(Fetched(7, 0, 0, b"\x03", bytes(5)), attempt(7))
    record = commits.add(decision(7), ME, 2.0, outgoing.resent, PhaseLog(), 0)
    assert (record.members, record.contributors, record.took_part) == (2, 2, True)
    assert [each["bytes"] for each in commits.as_json()] == [135]


def test_what_leaves_after_the_commit_still_counts_but_catching_up_does_not() -> None:
    commits = CommitLog()
    outgoing = Outgoing(ME, commits, None)
    commits.add(decision(7), ME, 2.0, 0, PhaseLog(), 0)
    outgoing.sent(Final(7, 0, 1, 0, (0, 0), b"\x03", bytes(30)), None)
    outgoing.sent(Fetched(7, 0, 0, b"\x03", bytes(5)), attempt(8))
    outgoing.sent(Fetched(7, 0, 0, b"\x03", bytes(5)), None)
    outgoing.sent(StateChunk(0, 6, 0, bytes(1000)), attempt(8))
    assert commits.as_json()[0]["bytes"] == 30


def test_what_is_contributed_twice_in_an_attempt_is_sent_again() -> None:
    outgoing = Outgoing(ME, CommitLog(), None)
    for chunk in (1, 2, 1):
        outgoing.sent(contribution(7, chunk), attempt(7))
    assert outgoing.resent == 100
    outgoing.sent(contribution(7, 1, number=2), attempt(7, number=2))
    assert outgoing.resent == 0


def test_a_fault_fires_between_two_chunks() -> None:
    said: list[str] = []
    outgoing = Outgoing(ME, CommitLog(), FaultTrigger(Fault("kill", 7, role="owner"), said.append))
    outgoing.sent(contribution(6, 1), attempt(6))
    assert said == []
    outgoing.sent(contribution(7, 1), attempt(7))
    assert said == ["1 of 2 chunks sent in round 7"]


def test_the_time_of_a_round_begins_with_the_first_submission() -> None:
    commits = CommitLog()
    for now in (1.0, 2.0):
        commits.submitted(now)
    assert commits.add(decision(7), ME, 4.0, 0, PhaseLog(), 0).seconds == 3.0
    assert commits.add(decision(8), ME, 9.0, 0, PhaseLog(), 0).seconds == 0.0  # we only followed


def test_a_record_says_where_the_time_went_and_how_the_training_did() -> None:
    commits, phases = CommitLog(), PhaseLog()
    for now, phase in ((1.0, "training"), (3.0, "reducing")):
        phases.observe(now, phase, lambda: [OTHER])
    commits.submitted(3.0, tokens=100, loss=2.5)
    record = commits.add(decision(7), ME, 4.0, 0, phases, samples=900)
    assert (record.tokens, record.loss, record.samples) == (100, 2.5, 900)
    row = commits.as_json()[0]
    assert row["phases"] == [{"phase": "training", "seconds": 2.0}, {"phase": "reducing", "seconds": 1.0}]
    assert row["waited_for"] == {OTHER: 3.0}
    json.dumps(row, allow_nan=False)
    commits.submitted(5.0, tokens=100, loss=math.nan)
    assert commits.add(decision(8), ME, 6.0, 0, phases, samples=900).loss is None  # NaN is no JSON
    assert commits.add(decision(9), ME, 7.0, 0, phases, samples=900).tokens == 0  # we only followed
