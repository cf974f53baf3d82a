"""A group and what follows from it: everything here is a pure function of the members' signed JOINs.

Rules: a member is in a roster only by its own JOIN to that roster's leader at that attempt; a roster stands on
JOINs from a quorum of the last round's voters; order, owners and weights are computed, never claimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import Digest, PeerId, digest
from shoal.protocol.base.signing import Signer, check_signature
from shoal.protocol.messages.rounds import Ballot, Join, PreparedValue, Proposal, Roster
from shoal.protocol.rounds.agreement.apart import MAX_APART, OPEN, Standing, Ways, ways_between
from shoal.protocol.rounds.agreement.quorum import is_quorum
from shoal.protocol.rounds.agreement.shares import Claim, Load, share
from shoal.protocol.rounds.agreement.voting import left_before, may_matter

MAX_MEMBERS = 10_000  # of a run, and so of a group


@dataclass(frozen=True, slots=True)
class Offer:
    """What we bring to a round."""

    weight: int
    up: int = 0  # of our line, in bytes per second; 0 = not measured
    down: int = 0
    standing: Standing = OPEN


@dataclass(frozen=True, slots=True)
class Base:
    """What a round builds on: the last committed round and who may decide on the next."""

    round: int
    history: Digest
    root: Digest
    voters: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class Policy:
    """The manifest's say in rounds."""

    min_members: int
    start_members: int
    max_group: int  # owners
    max_weight: int
    chunks: tuple[int, ...]  # of the rounds from 1 on, until they come again
    first: int = 1  # the run's first round; later in a run that goes on from a checkpoint
    slack: float = 0.0  # seconds that live members may train on while the others wait, however fast those were
    scatter: int = 1  # bytes of a chunk on the way to its owner, to those of
    gather: int = 1  # its mean on the way back

    def members_needed(self, round: int) -> int:
        """How many members a round must have to start."""
        return max(self.min_members, self.start_members if round == self.first else 1)

    def chunks_in(self, round: int) -> int:
        """How many chunks a round is about: fragments of a model need not be alike."""
        return self.chunks[(round - 1) % len(self.chunks)]


def rank(base: Base, attempt: int, peers: Iterable[PeerId]) -> list[PeerId]:
    """Peers in the order in which they lead `attempt`: nobody can choose its place without redoing history."""

    def key(peer: PeerId) -> bytes:
        return digest("leader", base.history, attempt.to_bytes(8, "little"), peer.encode())

    return sorted(peers, key=key)


def check_join(join: Join, policy: Policy, signer: Signer) -> None:
    """RemoteError, naming the author, for a JOIN that no honest peer sends. Ages and bases are not judged."""
    if join.weight > policy.max_weight:
        raise RemoteError(f"weight {join.weight} is over the run's cap of {policy.max_weight}", join.peer)
    if len(join.apart) > MAX_APART:
        raise RemoteError(f"names {len(join.apart)} members that it is apart from, more than {MAX_APART}", join.peer)
    check_signature(join, join.peer, signer)


def answers(joins: Iterable[Join]) -> dict[PeerId, PreparedValue | None]:
    """What those who vote have prepared; whoever joins without a vote has given its answer in its LEAVE."""
    return {join.peer: join.prepared for join in joins if join.votes}


def first_ballot(roster: Roster) -> Ballot:
    """What a group's leader proposes under, until somebody polls."""
    return Ballot(roster.attempt, 0, roster.leader)


def check_roster(roster: Roster, base: Base, policy: Policy, signer: Signer) -> None:
    """RemoteError, naming the leader, unless `roster` is a valid group on `base`."""

    def refuse(reason: str) -> RemoteError:
        return RemoteError(f"roster of round {roster.round}: {reason}", roster.leader)

    peers = [join.peer for join in roster.joins]
    if max(len(peers), len(roster.leaves)) > MAX_MEMBERS:
        raise refuse(f"no run has more than {MAX_MEMBERS} members")
    if len(set(peers)) != len(peers):
        raise refuse("a member is in it twice")
    if len(peers) < policy.members_needed(roster.round):
        raise refuse(f"{len(peers)} members are too few")
    for join in roster.joins:
        if (join.round, join.part, join.attempt, join.leader) != (
            roster.round,
            roster.part,
            roster.attempt,
            roster.leader,
        ):
            raise refuse(f"the JOIN of {join.peer} was not made for it")
        if (join.base_history, join.base_root) != (base.history, base.root):
            raise refuse(f"{join.peer} builds on another state")
    if peers != rank(base, roster.attempt, peers):
        raise refuse("members are not in order")
    if left_before(roster.leaves, roster.attempt) != roster.leaves:
        raise refuse("a LEAVE in it is of somebody who may have joined another group")
    if may_matter(answers(roster.joins), roster.leaves, base.voters) != roster.leaves:
        raise refuse("a LEAVE in it is of somebody without a vote")
    if not is_quorum(answers(roster.joins), base.voters, [leave.peer for leave in roster.leaves]):
        raise refuse("no quorum of the last round's voters joined it")
    check_signature(roster, roster.leader, signer)
    for leave in roster.leaves:
        if (leave.round, leave.part) != (roster.round, roster.part):
            raise refuse(f"the LEAVE of {leave.peer} is of another round")
        check_signature(leave, leave.peer, signer, roster.leader)
    for join in roster.joins:
        check_join(join, policy, signer)


def check_proposed(proposal: Proposal, roster: Roster, author: PeerId) -> None:
    """RemoteError, naming `author`, unless a proposal's group is `roster`'s, or one that a member had voted for."""
    if proposal.attempt == roster.attempt:
        peers, weights = tuple(join.peer for join in roster.joins), tuple(join.weight for join in roster.joins)
        if (proposal.members, proposal.weights) != (peers, weights):
            raise RemoteError("proposes the result of a group that did not join it", author)
        return
    voted = [join.prepared for join in roster.joins] + [leave.prepared for leave in roster.leaves]
    if not any(value is not None and value.proposal == proposal for value in voted):
        raise RemoteError("proposes an earlier result that nobody had voted for", author)


@dataclass(frozen=True, slots=True)
class Plan:
    """Who is who in a reduction."""

    round: int
    part: int
    attempt: int
    leader: PeerId
    members: tuple[PeerId, ...]
    weights: tuple[int, ...]
    owners: tuple[PeerId, ...]  # of each chunk, at epoch (0, 0)
    left: tuple[PeerId, ...]  # voters that signed off
    ways: Ways

    def contributors(self) -> list[PeerId]:
        """Members with something to add, in roster order."""
        return [peer for peer, weight in zip(self.members, self.weights, strict=True) if weight]


def make_plan(roster: Roster, policy: Policy) -> Plan:
    """The plan that every member derives from the same roster."""
    ways = ways_between(roster.joins)
    return Plan(
        roster.round,
        roster.part,
        roster.attempt,
        roster.leader,
        tuple(join.peer for join in roster.joins),
        tuple(join.weight for join in roster.joins),
        share_chunks(roster.joins, policy, ways, policy.chunks_in(roster.round)),
        tuple(leave.peer for leave in roster.leaves),
        ways,
    )


def share_chunks(joins: Sequence[Join], policy: Policy, ways: Ways, chunks: int) -> tuple[PeerId, ...]:
    """The owner of each chunk: those fit for it, as their lines allow (shares.py)."""
    peers = [join.peer for join in joins]
    fit = frozenset(ways.fittest(peers, peers))
    claims = [Claim(join.up, join.down, join.weight > 0, join.peer in fit) for join in joins]
    counts = share(claims, Load(chunks, policy.scatter, policy.gather), policy.max_group)
    return tuple(peer for peer, count in zip(peers, counts, strict=True) for _ in range(count))
