"""What a round decides, as digests and as proof: pure functions over proposals and certificates."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.protocol.errors import RemoteError
from shoal.protocol.ids import Digest, PeerId, RunId, digest
from shoal.protocol.messages.rounds import Certificate, ChunkRef, Prepared, Proposal
from shoal.protocol.quorum import is_quorum
from shoal.protocol.roster import Base
from shoal.protocol.signing import Signer, check_signature
from shoal.protocol.wire import encode_value


def genesis(run: RunId, part: int) -> Digest:
    """The history digest before round 1."""
    return digest("genesis", run, part.to_bytes(4, "little"))


def result_digest(chunks: Sequence[ChunkRef]) -> Digest:
    """One digest for a whole result: its chunks' hashes and masks, in order."""
    return digest("result", *(part for ref in chunks for part in (ref.hash, ref.mask)))


def proposal_digest(proposal: Proposal) -> Digest:
    """What PREPARED signs."""
    return digest("proposal", encode_value(proposal))


def next_history(proposal: Proposal) -> Digest:
    """The history digest after `proposal` commits: H(previous, result, samples, voters)."""
    voters = digest("voters", *(voter.encode() for voter in proposal.voters))
    return digest("history", proposal.base_history, proposal.result, proposal.samples.to_bytes(8, "little"), voters)


def next_base(proposal: Proposal, root: Digest) -> Base:
    """The base of the round after `proposal`, with the state root read back after applying it."""
    return Base(proposal.round, next_history(proposal), root, proposal.voters)


def check_proposal(proposal: Proposal, base: Base, author: PeerId) -> None:
    """RemoteError, naming `author`, for a proposal that no honest leader makes on `base`."""
    if proposal.round != base.round + 1 or proposal.base_history != base.history:
        raise RemoteError(f"proposes round {proposal.round} on another history", author)
    if len(proposal.members) != len(proposal.weights) or not proposal.voters:
        raise RemoteError("proposes a malformed group", author)
    voters = [member for member in proposal.members if member in proposal.voters]
    if tuple(voters) != proposal.voters:
        raise RemoteError("proposes voters that are not members, or out of order", author)


def check_certificate(certificate: Certificate, base: Base, signer: Signer) -> None:
    """RemoteError unless quorums of the old and of the new voters signed the proposal under one ballot."""
    proposal, ballot = certificate.proposal, certificate.ballot
    check_proposal(proposal, base, ballot.leader)
    voters = [vote.peer for vote in certificate.votes]
    if len(set(voters)) != len(voters):
        raise RemoteError("certificate counts a vote twice", ballot.leader)
    left = [leave.peer for leave in certificate.leaves if leave.round == proposal.round]
    if not (is_quorum(voters, base.voters, left) and is_quorum(voters, proposal.voters, left)):
        raise RemoteError("certificate has no quorum", ballot.leader)
    for leave in certificate.leaves:
        check_signature(leave, leave.peer, signer)
    signed_digest = proposal_digest(proposal)
    for vote in certificate.votes:
        prepared = Prepared(proposal.round, proposal.part, ballot, signed_digest, vote.peer, vote.signature)
        check_signature(prepared, vote.peer, signer)


def mask_of(members: Sequence[PeerId], counted: Sequence[PeerId]) -> bytes:
    """Bit i: whether member i is among `counted`."""
    bits = sum(1 << index for index, member in enumerate(members) if member in counted)
    return bits.to_bytes((len(members) + 7) // 8, "little")


def in_mask(mask: bytes, index: int) -> bool:
    """Whether bit `index` is set."""
    return index // 8 < len(mask) and bool(mask[index // 8] >> (index % 8) & 1)


def counted_everywhere(chunks: Sequence[ChunkRef], members: int) -> list[int]:
    """Indices of the members that are in every chunk."""
    return [index for index in range(members) if all(in_mask(ref.mask, index) for ref in chunks)]
