"""Certificates and proposals: which are valid, and which are refused."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import NO_DIGEST, PeerId, digest
from shoal.protocol.messages.rounds import Ballot, Certificate, ChunkRef, Commit, PreparedValue, Proposal, Vote
from shoal.protocol.rounds.agreement.certificate import (
    check_certificate,
    check_commit,
    check_leave,
    check_value,
    counted_everywhere,
    mask_of,
    next_base,
    result_digest,
)
from shoal.protocol.rounds.agreement.roster import MAX_MEMBERS
from shoal.protocol.rounds.agreement.voting import NO_BALLOT
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


def _crowd(size: int) -> PreparedValue:
    """A value of a group of strangers, all of whom vote next."""
    names = tuple(PeerId(f"stranger {number}") for number in range(size))
    return _proposing(members=names, weights=(0,) * size, voters=names, samples=0)


class _Counted(str):
    """A name that counts how often names are compared."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        _Counted.comparisons += 1
        return str.__eq__(self, other)  # type: ignore[arg-type]

    __hash__ = str.__hash__


class _Asked:
    """A signer that remembers about whose signatures it was asked."""

    peer = A

    def __init__(self) -> None:
        self.asked: list[PeerId] = []

    def sign(self, data: bytes) -> bytes:
        return SIGNER.sign(data)

    def verify(self, author: PeerId, data: bytes, signature: bytes) -> bool:
        self.asked.append(author)
        return SIGNER.verify(author, data, signature)


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
    (_proposing(samples=SOUND.proposal.samples + 1), "other tokens than its members'"),
    (value(chunks=refs(b"\x0f")), "mask"),
    (_crowd(MAX_MEMBERS + 1), "10001 members"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD_VALUES)
def test_a_bad_value_is_refused_and_whoever_shows_it_named(bad: PreparedValue, reason: str) -> None:
    with pytest.raises(RemoteError, match=reason) as caught:
        check_value(bad, BASE, CHUNKS, B)
    assert caught.value.peer == B


def test_a_crowd_of_strangers_is_judged_in_linear_time() -> None:
    """Before any signature is looked at, whoever sent it: a quadratic check of a few megabytes would take minutes."""
    crowd = tuple(PeerId(_Counted(f"stranger {number}")) for number in range(2000))
    again = tuple(PeerId(_Counted(name)) for name in crowd)  # equal, and not the same objects, as after decoding
    votes = tuple(Vote(PeerId(_Counted(name)), b"") for name in crowd)
    proposal = dataclasses.replace(_crowd(1).proposal, members=crowd, weights=(0,) * len(crowd), voters=again)
    _Counted.comparisons = 0
    with pytest.raises(RemoteError, match="no quorum"):
        check_certificate(Certificate(SOUND.ballot, proposal, votes, ()), BASE, SIGNER)
    mask_of(crowd, again)
    assert _Counted.comparisons < 20 * len(crowd)


def test_a_sound_certificate_passes() -> None:
    check_certificate(certificate(), BASE, SIGNER)
    check_certificate(certificate(voters=[A, B]), BASE, SIGNER)


def _spoilt(**changes: object) -> Certificate:
    return dataclasses.replace(certificate(), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (certificate(voters=[C]), "no quorum"),
        (certificate(voters=[A, A, B]), "somebody twice"),
        (certificate(voters=[A, B, STRANGER]), "without a vote"),
        (_spoilt(leaves=(leave(C, NO_BALLOT), leave(C, NO_BALLOT))), "somebody twice"),
        (_spoilt(leaves=(leave(STRANGER, NO_BALLOT),)), "without a vote"),
        (_spoilt(ballot=Ballot(9, 0, LEADER)), "forged"),
        (_spoilt(proposal=_proposing(samples=1).proposal), "forged"),
        (_spoilt(leaves=(dataclasses.replace(leave(C, NO_BALLOT), round=ROUND - 1),)), "LEAVE of round"),
        (_spoilt(leaves=(dataclasses.replace(leave(C, NO_BALLOT), signature=b""),)), "Leave has a forged"),
    ],
)
def test_a_bad_certificate_proves_nothing(bad: Certificate, reason: str) -> None:
    with pytest.raises(RemoteError, match=reason):
        check_certificate(bad, BASE, SIGNER)


def test_signatures_of_old_voters_are_looked_at_first() -> None:
    """Else somebody could sign in the names of thousands that it invented, and forge one at the end."""
    named = _proposing(members=(*SOUND.proposal.members, STRANGER), weights=(0,) * 4, voters=(*PEERS, STRANGER))
    bad = certificate(named, [STRANGER, A, B])
    spoilt = tuple(dataclasses.replace(each, signature=b"") for each in bad.votes)
    signer = _Asked()
    with pytest.raises(RemoteError, match="forged") as caught:
        check_certificate(dataclasses.replace(bad, votes=spoilt), BASE, signer)
    assert caught.value.peer == LEADER
    assert signer.asked == [A]


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
        (leave(B, Ballot(0, 0, A), SOUND), "above its promise"),
        (leave(B, Ballot(5, 0, A), BAD_VALUES[7][0]), "not the proposed result"),
    ],
)
def test_a_bad_leave_names_its_author(bad: object, reason: str) -> None:
    with pytest.raises(RemoteError, match=reason) as caught:
        check_leave(bad, BASE, CHUNKS)  # type: ignore[arg-type]
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
