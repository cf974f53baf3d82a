"""What is signed must agree with itself: JOINs make a ROSTER, a ROSTER its proposal, votes and LEAVEs a certificate.

Independent of the cores: real signatures of real majorities, and every consequence computed anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgpack

from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.ids import PeerId, result_hash
from shoal.protocol.messages.rounds import Certificate, Prepared, Proposal, Roster
from shoal.protocol.rounds.agreement.certificate import proposal_digest, result_digest
from shoal.protocol.rounds.allreduce.shelf import Decision
from tests.simulation.ledger import Ledger, Voters, holds_quorum
from tests.simulation.promises import Violation
from tests.simulation.signing import check_signed


class Proofs:
    """Checks what a decision claims against all rosters that were sent, and against the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.rosters: dict[tuple[int, int], list[Roster]] = defaultdict(list)  # by (round, attempt)

    def saw(self, effect: Effect) -> None:
        """An effect is about to be carried out."""
        if isinstance(effect, Send) and isinstance(effect.message, Roster):
            rosters = self.rosters[effect.message.round, effect.message.attempt]
            if effect.message not in rosters:
                rosters.append(effect.message)

    def check(self, peer: PeerId, decision: Decision) -> None:
        """Violation unless everything that `peer` was told follows from what was signed."""
        certificate = decision.certificate
        if not certificate.votes:
            raise Violation("All or nothing", f"{peer} is told to apply round {decision.round}, which nobody decided")
        before = self._ledger.voters_after(decision.round - 1)
        if before is None:
            raise Violation("Agreement", f"round {decision.round} is decided before round {decision.round - 1}")
        self._check_certificate(certificate, before)
        self._check_bytes(peer, decision)
        self.check_proposal(decision, before)
        self._check_group(certificate.proposal, before)

    # -- the certificate -------------------------------------------------------------------------------------

    def _check_certificate(self, certificate: Certificate, before: Voters) -> None:
        proposal = certificate.proposal
        votes, left = [vote.peer for vote in certificate.votes], [leave.peer for leave in certificate.leaves]
        for name, voters in (("old", before), ("new", proposal.voters)):
            if not holds_quorum(votes, voters, left):
                raise Violation(
                    "Agreement", f"round {proposal.round} was decided without a quorum of its {name} voters"
                )
        digest = proposal_digest(proposal)
        for vote in certificate.votes:
            who = (vote.peer, vote.signature)
            prepared = Prepared(proposal.round, proposal.part, certificate.ballot, digest, *who)
            check_signed(prepared, vote.peer)
            if not self._ledger.has_voted(vote.peer, certificate.ballot, proposal):
                raise Violation("Agreement", f"{vote.peer} never cast its vote on round {proposal.round}")
        for leave in certificate.leaves:
            if leave != self._ledger.leaves[proposal.round].get(leave.peer):
                raise Violation("Agreement", f"{leave.peer} never signed off from round {proposal.round}")
            if leave.promised.order > certificate.ballot.order:
                raise Violation("Agreement", f"{leave.peer} had promised more than {certificate.ballot}")

    def _check_bytes(self, peer: PeerId, decision: Decision) -> None:
        if result_digest(decision.chunks) != decision.certificate.proposal.result:
            raise Violation("Agreement", f"{peer} was told other chunks than those decided in round {decision.round}")
        for ref, payload in zip(decision.chunks, decision.payloads, strict=True):
            if result_hash(ref.mask, payload) != ref.hash:
                raise Violation("Agreement", f"{peer} holds other bytes than those decided in round {decision.round}")

    # -- the proposal ----------------------------------------------------------------------------------------

    def check_proposal(self, decision: Decision, before: Voters) -> None:
        """Violation unless the proposal follows from the round before, and from the bytes that were told."""
        proposal = decision.certificate.proposal
        if proposal.base_history != self._ledger.history(proposal.round - 1):
            raise Violation("Agreement", f"round {proposal.round} does not build on round {proposal.round - 1}")
        stayed = [peer for peer in before if peer in proposal.voters]
        came = [peer for peer in proposal.members if peer in proposal.voters and peer not in before]
        if not proposal.voters or proposal.voters != (*stayed, *came):
            raise Violation("Agreement", f"{proposal.voters} vote after round {proposal.round}, of {proposal.members}")
        counted = [{fact[0] for fact in msgpack.unpackb(payload)[0]} for payload in decision.payloads]
        weights = zip(proposal.members, proposal.weights, strict=True)
        samples = sum(weight for peer, weight in weights if all(peer in names for names in counted))
        if samples != proposal.samples:
            raise Violation("Validity", f"round {proposal.round} has {samples} samples, not {proposal.samples}")

    def _check_group(self, proposal: Proposal, before: Voters) -> None:
        """The leader of a group of one has sent its roster to nobody."""
        if len(proposal.members) == 1:
            return
        rosters = self.rosters[proposal.round, proposal.attempt]
        fitting = [roster for roster in rosters if tuple(join.peer for join in roster.joins) == proposal.members]
        if not fitting:
            raise Violation("Validity", f"the group of round {proposal.round} is no roster of its attempt")
        for roster in fitting:
            _check_roster(roster, proposal, before)


def _check_roster(roster: Roster, proposal: Proposal, before: Sequence[PeerId]) -> None:
    check_signed(roster, roster.leader)
    who = (roster.round, roster.part, roster.attempt, roster.leader)
    left = [leave.peer for leave in roster.leaves]
    for leave in roster.leaves:
        check_signed(leave, leave.peer)
    for join, weight in zip(roster.joins, proposal.weights, strict=True):
        check_signed(join, join.peer)
        if (join.round, join.part, join.attempt, join.leader) != who:
            raise Violation("Validity", f"{join.peer} has not joined the group of round {proposal.round}")
        if (join.base_history, join.base_root) != (proposal.base_history, proposal.base_root):
            raise Violation("Fencing", f"{join.peer} is in the group of round {proposal.round} with another state")
        if join.weight != weight:
            raise Violation("Validity", f"{join.peer} joined round {proposal.round} with {join.weight}, not {weight}")
    if not holds_quorum([join.peer for join in roster.joins if join.votes], before, left):
        raise Violation("Agreement", f"the group of round {proposal.round} is no quorum of its old voters")
    if any(peer in proposal.voters for peer in left):
        raise Violation("Agreement", f"somebody who signed off before round {proposal.round} votes after it")
