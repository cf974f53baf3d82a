"""What a round decides, as digests and as proof: pure functions over proposals, votes and certificates.

A check raises RemoteError and names whoever showed us the bad thing: with it, its author is known only if the
author's own signature holds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import Digest, PeerId, RunId, digest
from shoal.protocol.base.signing import Signer, check_signature
from shoal.protocol.base.wire import encode_value
from shoal.protocol.messages.rounds import (
    Certificate,
    ChunkRef,
    Commit,
    Leave,
    Prepared,
    PreparedValue,
    Proposal,
    Roster,
)
from shoal.protocol.rounds.agreement.quorum import is_quorum
from shoal.protocol.rounds.agreement.roster import MAX_MEMBERS, Base, Plan
from shoal.protocol.rounds.agreement.voting import counting


def genesis(run: RunId, part: int) -> Digest:
    """The history digest before round 1 of a run that goes on from no other."""
    return digest("genesis", run, part.to_bytes(4, "little"))


def result_digest(chunks: Sequence[ChunkRef]) -> Digest:
    """One digest for a whole result: its chunks' hashes and masks, in order."""
    return digest("result", *(part for ref in chunks for part in (ref.hash, ref.mask)))


def proposal_digest(proposal: Proposal) -> Digest:
    """What PREPARED signs."""
    return digest("proposal", encode_value(proposal))


def next_history(proposal: Proposal) -> Digest:
    """The history digest after `proposal` commits: H(previous, result, samples).

    Nothing in it depends on the run or on who votes, so that a run that goes on from a checkpoint, whose first round
    its founder decides alone, has the history that the other run would have had. Who votes next is in the proposal.
    """
    return digest("history", proposal.base_history, proposal.result, proposal.samples.to_bytes(8, "little"))


def next_base(proposal: Proposal, root: Digest) -> Base:
    """The base of the round after `proposal`, with the state root read back after applying it."""
    return Base(proposal.round, next_history(proposal), root, proposal.voters)


def next_voters(base: Base, members: Sequence[PeerId], gone: Collection[PeerId]) -> tuple[PeerId, ...]:
    """Who votes after a round: its members, the old voters first, in their order.

    So the first, who decides when the votes are even, is the same for the old and the new voters while it stays: with
    two of them, the death of the other is survived at any moment.
    """
    present, before, gone = set(members), set(base.voters), set(gone)
    old = [voter for voter in base.voters if voter in present]
    new = [member for member in members if member not in before]
    return tuple(peer for peer in (*old, *new) if peer not in gone)


def make_proposal(plan: Plan, base: Base, chunks: Sequence[ChunkRef], gone: Collection[PeerId]) -> Proposal:
    """What a leader proposes when the reduction is done; those who are `gone` do not vote on the next round."""
    return Proposal(
        round=plan.round,
        part=plan.part,
        attempt=plan.attempt,
        base_history=base.history,
        base_root=base.root,
        result=result_digest(chunks),
        members=plan.members,
        weights=plan.weights,
        voters=next_voters(base, plan.members, gone),
        samples=count_samples(plan.weights, chunks),
    )


def check_proposal(proposal: Proposal, base: Base, author: PeerId) -> None:
    """RemoteError, naming `author`, for a proposal that no honest leader makes on `base`."""
    if proposal.round != base.round + 1 or proposal.base_history != base.history:
        raise RemoteError(f"proposes round {proposal.round} on another history", author)
    if len(proposal.members) > MAX_MEMBERS:
        raise RemoteError(f"proposes a group of {len(proposal.members)} members; no run has so many", author)
    members = set(proposal.members)
    if not (len(proposal.members) == len(proposal.weights) == len(members)) or not proposal.voters:
        raise RemoteError("proposes a malformed group", author)
    gone = members.difference(proposal.voters)
    if proposal.voters != next_voters(base, proposal.members, gone):
        raise RemoteError("proposes voters that are not members, or out of order", author)


def check_chunks(proposal: Proposal, chunks: Sequence[ChunkRef], count: int, author: PeerId) -> None:
    """RemoteError, naming `author`, unless `chunks` are the whole result that a sound `proposal` stands for."""
    if len(chunks) != count:
        raise RemoteError(f"names {len(chunks)} chunks of {count}", author)
    if result_digest(chunks) != proposal.result:
        raise RemoteError("names chunks that are not the proposed result", author)
    if not all(_fits(ref.mask, proposal.members) for ref in chunks):
        raise RemoteError("names a mask that does not fit the group", author)
    if any(proposal.weights) and not all(any(ref.mask) for ref in chunks):
        raise RemoteError("names a chunk that is the mean of nothing", author)
    if proposal.samples != count_samples(proposal.weights, chunks):
        raise RemoteError("counts other tokens than its members' in every chunk", author)


def check_value(value: PreparedValue, base: Base, chunks: int, author: PeerId) -> None:
    """RemoteError, naming `author`, for a prepared value that no honest peer shows."""
    check_proposal(value.proposal, base, author)
    check_chunks(value.proposal, value.chunks, chunks, author)


def check_leave(leave: Leave, base: Base, chunks: int) -> None:
    """RemoteError, naming its author, for a LEAVE of the round after `base` that no honest peer signs.

    The signature was checked when it came in: only whoever sent it can be blamed for a forged one.
    """
    if leave.round != base.round + 1:
        raise RemoteError(f"signs off from round {leave.round} in round {base.round + 1}", leave.peer)
    if leave.prepared is not None:
        check_value(leave.prepared, base, chunks, leave.peer)
        if leave.prepared.ballot.order > leave.promised.order:
            raise RemoteError("signs off with a vote above its promise", leave.peer)


def check_answers(roster: Roster, base: Base, chunks: int) -> None:
    """RemoteError, naming the leader, unless what its members have prepared can have been proposed."""
    values = [*(join.prepared for join in roster.joins), *(leave.prepared for leave in roster.leaves)]
    for value in values:
        if value is not None:
            check_value(value, base, chunks, roster.leader)


def check_commit(message: Commit, base: Base, chunks: int, signer: Signer) -> None:
    """RemoteError unless `message` proves what was decided on `base`, and names all its chunks."""
    certificate = message.certificate
    check_certificate(certificate, base, signer)
    check_chunks(certificate.proposal, message.chunks, chunks, certificate.ballot.leader)


def check_certificate(certificate: Certificate, base: Base, signer: Signer) -> None:
    """RemoteError unless quorums of the old and of the new voters signed the proposal under one ballot."""
    proposal, ballot = certificate.proposal, certificate.ballot
    check_proposal(proposal, base, ballot.leader)
    entitled = {*base.voters, *proposal.voters}
    voters, leavers = [vote.peer for vote in certificate.votes], [leave.peer for leave in certificate.leaves]
    for authors in (voters, leavers):
        if len(set(authors)) != len(authors):
            raise RemoteError("certificate counts somebody twice", ballot.leader)
        if not entitled.issuperset(authors):
            raise RemoteError("certificate counts somebody without a vote", ballot.leader)
    for leave in certificate.leaves:
        if (leave.round, leave.part) != (proposal.round, proposal.part):
            raise RemoteError(f"certificate holds a LEAVE of round {leave.round}", ballot.leader)
    left = [leave.peer for leave in counting(certificate.leaves, ballot)]
    if not (is_quorum(voters, base.voters, left) and is_quorum(voters, proposal.voters, left)):
        raise RemoteError("certificate has no quorum", ballot.leader)
    _check_signatures(certificate, base, signer)


def _check_signatures(certificate: Certificate, base: Base, signer: Signer) -> None:
    """Those of the old voters first: anybody can invent new ones and sign for them, as many as it likes."""
    proposal, ballot, before = certificate.proposal, certificate.ballot, set(base.voters)
    signed_digest = proposal_digest(proposal)
    messages: list[Leave | Prepared] = [*certificate.leaves]
    for vote in certificate.votes:
        prepared = Prepared(proposal.round, proposal.part, ballot, signed_digest, vote.peer, vote.signature)
        messages.append(prepared)
    for message in sorted(messages, key=lambda each: each.peer not in before):
        check_signature(message, message.peer, signer, ballot.leader)


def mask_of(members: Sequence[PeerId], counted: Sequence[PeerId]) -> bytes:
    """Bit i: whether member i is among `counted`."""
    mask, present = bytearray(mask_size(members)), set(counted)
    for index, member in enumerate(members):
        if member in present:
            mask[index // 8] |= 1 << index % 8
    return bytes(mask)


def mask_size(members: Sequence[PeerId]) -> int:
    """Bytes of a mask over `members`."""
    return (len(members) + 7) // 8


def in_mask(mask: bytes, index: int) -> bool:
    """Whether bit `index` is set."""
    return index // 8 < len(mask) and bool(mask[index // 8] >> (index % 8) & 1)


def _fits(mask: bytes, members: Sequence[PeerId]) -> bool:
    """Whether a mask has a bit for each of `members`, and sets no other."""
    return len(mask) == mask_size(members) and not int.from_bytes(mask, "little") >> len(members)


def counted_everywhere(chunks: Sequence[ChunkRef], members: int) -> list[int]:
    """Indices of the members that are in every chunk."""
    common = (1 << members) - 1
    for ref in chunks:
        common &= int.from_bytes(ref.mask, "little")
    mask = common.to_bytes((members + 7) // 8, "little")
    return [index for index in range(members) if in_mask(mask, index)]


def count_samples(weights: Sequence[int], chunks: Sequence[ChunkRef]) -> int:
    """The tokens of those members that are in every chunk."""
    return sum(weights[index] for index in counted_everywhere(chunks, len(weights)))
