"""Proofs: what a certificate must hold, and what a proposal must be."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.protocol.certificate import (
    check_certificate,
    check_commit,
    check_leave,
    check_value,
    counted_everywhere,
    mask_of,
    next_base,
    result_digest,
)
from shoal.protocol.errors import RemoteError
from shoal.protocol.ids import NO_DIGEST, digest
from shoal.protocol.messages.rounds import Ballot, Certificate, ChunkRef, Commit, PreparedValue, Proposal
from tests.unit.rounds_kit import (
    BASE,
    CHUNKS,
    PEERS,
    ROUND,
    SIGNER,
    STRANGER,
    A,
    B,
    C,
    D,
    certificate,
    leave,
    refs,
    value,
)

SOUND = value()
LEADER = SOUND.ballot.leader


def _proposing(**changes: object) -> PreparedValue:
    proposal: Proposal = dataclasses.replace(SOUND.proposal, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(SOUND, proposal=proposal)


BAD_VALUES = [
    (_proposing(round=ROUND + 1), "another history"),
    (_proposing(base_history=NO_DIGEST), "another history"),
    (_proposing(weights=(1,)), "malformed group"),
    (_proposing(members=(A, A, B)), "malformed group"),
    (_proposing(voters=()), "malformed group"),
    (_proposing(voters=(STRANGER,)), "voters that are not members"),
    (_proposing(voters=tuple(reversed(SOUND.proposal.voters))), "voters that are not members"),
    (_proposing(result=NO_DIGEST), "not the proposed result"),
    (dataclasses.replace(SOUND, chunks=SOUND.chunks[:-1]), "names 2 chunks of 3"),
    (value(chunks=refs(b"\x01\x02")), "mask"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD_VALUES)
def test_a_bad_value_is_refused_and_whoever_shows_it_named(bad: PreparedValue, reason: str) -> None:
    with pytest.raises(RemoteError, match=reason) as caught:
        check_value(bad, BASE, CHUNKS, B)
    assert caught.value.peer == B


def test_a_sound_certificate_passes() -> None:
    check_certificate(certificate(), BASE, SIGNER)
    check_certificate(certificate(voters=[A, B]), BASE, SIGNER)


def _spoilt(**changes: object) -> Certificate:
    return dataclasses.replace(certificate(), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (certificate(voters=[C]), "no quorum"),
        (certificate(voters=[A, A, B]), "a vote twice"),
        (_spoilt(ballot=Ballot(9, 0, LEADER)), "forged"),
        (_spoilt(proposal=_proposing(samples=1).proposal), "forged"),
        (_spoilt(leaves=(dataclasses.replace(leave(D, Ballot(0, 0, A)), round=ROUND - 1),)), "LEAVE of round"),
        (_spoilt(leaves=(dataclasses.replace(leave(D, Ballot(0, 0, A)), signature=b""),)), "Leave has a forged"),
    ],
)
def test_a_bad_certificate_proves_nothing(bad: Certificate, reason: str) -> None:
    with pytest.raises(RemoteError, match=reason):
        check_certificate(bad, BASE, SIGNER)


def test_a_leave_above_the_ballot_buys_no_quorum() -> None:
    low = dataclasses.replace(certificate(voters=[C]), leaves=(leave(A, Ballot(0, 0, A)), leave(B, Ballot(0, 0, A))))
    check_certificate(low, BASE, SIGNER)
    high = dataclasses.replace(low, leaves=(leave(A, Ballot(9, 0, A)), leave(B, Ballot(9, 0, A))))
    with pytest.raises(RemoteError, match="no quorum"):
        check_certificate(high, BASE, SIGNER)


def test_a_commit_must_name_the_chunks_that_were_voted_for() -> None:
    check_commit(Commit(certificate(), SOUND.chunks), BASE, CHUNKS, SIGNER)
    with pytest.raises(RemoteError, match="not the proposed result"):
        check_commit(Commit(certificate(), refs(b"\x01")), BASE, CHUNKS, SIGNER)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (dataclasses.replace(leave(B, Ballot(1, 0, A)), round=ROUND + 1), "signs off from round"),
        (dataclasses.replace(leave(B, Ballot(1, 0, A)), signature=b"no"), "forged"),
        (leave(B, Ballot(0, 0, A), SOUND), "above its promise"),
        (leave(B, Ballot(5, 0, A), BAD_VALUES[7][0]), "not the proposed result"),
    ],
)
def test_a_bad_leave_names_its_author(bad: object, reason: str) -> None:
    with pytest.raises(RemoteError, match=reason) as caught:
        check_leave(bad, BASE, CHUNKS, SIGNER)  # type: ignore[arg-type]
    assert caught.value.peer == B


def test_the_mean_of_nothing_is_no_result() -> None:
    """Unless nobody had anything to give."""
    nothing = bytes(len(mask_of(PEERS, PEERS)))
    with pytest.raises(RemoteError, match="mean of nothing"):
        check_value(value(chunks=refs(nothing)), BASE, CHUNKS, PEERS[0])


def test_digests_depend_on_everything() -> None:
    assert result_digest(refs()) != result_digest(refs(b"\x01"))
    roots = {next_base(proposal, NO_DIGEST).history for proposal in (SOUND.proposal, _proposing(samples=1).proposal)}
    assert len(roots) == 2
    assert next_base(SOUND.proposal, digest("root")).voters == SOUND.proposal.voters


def test_who_is_counted_everywhere() -> None:
    chunks = [ChunkRef(NO_DIGEST, mask_of(PEERS, counted)) for counted in ([A, B, C], [A, C], [A, B, C])]
    assert counted_everywhere(chunks, 3) == [0, 2]
