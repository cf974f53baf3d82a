"""The oracle believes no decision whose signed messages do not fit together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from shoal.protocol.base.ids import NO_DIGEST, Digest, PeerId
from shoal.protocol.base.signing import signed
from shoal.protocol.messages.rounds import Ballot, Join, Leave, Proposal, Roster
from shoal.protocol.rounds.allreduce.shelf import Decision
from tests.simulation.campaign import build
from tests.simulation.links import LAN
from tests.simulation.oracle import Oracle
from tests.simulation.promises import Violation
from tests.simulation.signing import FakeSigner
from tests.simulation.swarm import peers_named

ME, LEAVER, *_ = peers_named(3)
ROUND = 2


@pytest.fixture
def oracle() -> Oracle:
    """An oracle that has seen two rounds of three members."""
    world, oracle = build(1, 3, LAN)
    world.run_until(lambda: all(node.round >= ROUND for node in world.nodes()), within=60.0)
    return oracle


def _check(oracle: Oracle, decision: Decision) -> None:
    oracle.proofs.check(ME, decision)


def test_what_happened_is_believed(oracle: Oracle) -> None:
    _check(oracle, oracle.decisions[ROUND])


def _rejoined(**changes: object) -> Callable[[Roster], Roster]:
    def spoil(roster: Roster) -> Roster:
        join: Join = dataclasses.replace(roster.joins[0], **changes)  # type: ignore[arg-type]
        return dataclasses.replace(roster, joins=(signed(join, FakeSigner(join.peer)), *roster.joins[1:]))

    return spoil


def _signed_off(roster: Roster) -> Roster:
    goodbye = signed(Leave(ROUND, 0, LEAVER, Ballot(0, 0, LEAVER), None, b""), FakeSigner(LEAVER))
    return dataclasses.replace(roster, leaves=(goodbye,))


def _forged(roster: Roster) -> Roster:
    return dataclasses.replace(
        roster, joins=(dataclasses.replace(roster.joins[0], signature=b"forged"), *roster.joins[1:])
    )


@pytest.mark.parametrize(
    ("spoil", "promise", "reason"),
    [
        (_rejoined(weight=7), "Validity", "joined round 2 with 7"),
        (_rejoined(base_root=NO_DIGEST), "Fencing", "another state"),
        (_rejoined(attempt=9), "Validity", "has not joined"),
        (_signed_off, "Agreement", "signed off before round 2 votes after it"),
        (_forged, "Agreement", "forged"),
        (lambda roster: dataclasses.replace(roster, joins=roster.joins[:2]), "Validity", "no roster"),
    ],
)
def test_a_roster_that_does_not_fit(
    oracle: Oracle, spoil: Callable[[Roster], Roster], promise: str, reason: str
) -> None:
    decision = oracle.decisions[ROUND]
    rosters = oracle.proofs.rosters[ROUND, decision.certificate.proposal.attempt]
    spoilt = spoil(rosters[0])
    rosters[:] = [signed(spoilt, FakeSigner(spoilt.leader))]
    with pytest.raises(Violation, match=reason) as caught:
        _check(oracle, decision)
    assert caught.value.promise == promise


def _proposing(decision: Decision, **changes: object) -> Decision:
    proposal: Proposal = dataclasses.replace(decision.certificate.proposal, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(decision, certificate=dataclasses.replace(decision.certificate, proposal=proposal))


def _certified(decision: Decision, **changes: object) -> Decision:
    certificate = dataclasses.replace(decision.certificate, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(decision, certificate=certificate)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda each: _certified(each, votes=each.certificate.votes[:1]), "quorum"),
        (lambda each: _certified(each, ballot=Ballot(9, 0, ME)), "forged"),
        (lambda each: _proposing(each, samples=1), "forged"),
        (lambda each: dataclasses.replace(each, payloads=(b"", *each.payloads[1:])), "other bytes"),
        (lambda each: dataclasses.replace(each, chunks=each.chunks[:1]), "other chunks"),
    ],
)
def test_a_certificate_that_does_not_fit(oracle: Oracle, spoil: Callable[[Decision], Decision], reason: str) -> None:
    with pytest.raises(Violation, match=reason):
        _check(oracle, spoil(oracle.decisions[ROUND]))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"samples": 1}, "samples"),
        ({"base_history": Digest(bytes(32))}, "does not build on"),
        ({"voters": tuple(reversed(peers_named(3)))}, "vote after round 2"),
    ],
)
def test_a_proposal_that_does_not_follow(oracle: Oracle, changes: dict[str, object], reason: str) -> None:
    decision = _proposing(oracle.decisions[ROUND], **changes)
    before = oracle.ledger.voters_after(ROUND - 1)
    assert before is not None
    with pytest.raises(Violation, match=reason):
        oracle.proofs.check_proposal(decision, before)


def test_a_leave_that_nobody_signed(oracle: Oracle) -> None:
    stranger = PeerId("stranger")  # without whom the quorums are the same as before
    goodbye = signed(Leave(ROUND, 0, stranger, Ballot(0, 0, stranger), None, b""), FakeSigner(stranger))
    with pytest.raises(Violation, match="never signed off"):
        _check(oracle, _certified(oracle.decisions[ROUND], leaves=(goodbye,)))
