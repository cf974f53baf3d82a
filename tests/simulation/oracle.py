"""Sees everything that happens in a simulated swarm and holds it to the promises.

A broken promise raises Violation with the promise's name; nothing here looks at how the cores work inside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgpack

from shoal.protocol.certificate import in_mask, next_history, proposal_digest, result_digest
from shoal.protocol.ids import Digest, PeerId, result_hash
from shoal.protocol.messages.rounds import Certificate, Prepared
from shoal.protocol.rounds import Aborted
from shoal.protocol.shelf import Decision
from shoal.protocol.signing import check_signature
from tests.simulation.signing import FakeSigner


class Violation(AssertionError):
    """A promise is broken."""

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(f"{promise}: {what}")
        self.promise = promise


class Oracle:
    """The swarm's ledger."""

    def __init__(self, creator: PeerId) -> None:
        self.decisions: dict[int, Decision] = {}
        self.roots: dict[int, Digest] = {}
        self.voters: dict[int, tuple[PeerId, ...]] = {0: (creator,)}
        self.members_at: dict[int, list[PeerId]] = defaultdict(list)
        self.aborts: list[tuple[int, int, str]] = []
        self.begun: set[int] = set()
        self.start_members = 0
        self._offers: dict[tuple[PeerId, int], list[tuple[int, tuple[float, ...]]]] = defaultdict(list)

    # -- what the peers tell --------------------------------------------------------------------------------

    def offered(self, peer: PeerId, round: int, weight: int, amounts: Sequence[float]) -> None:
        """`peer` has something to contribute to `round`."""
        self._offers[peer, round].append((weight, tuple(amounts)))

    def begins(self, round: int) -> None:
        """Somebody is ready for `round`."""
        self.begun.add(round)

    def committed(self, peer: PeerId, decision: Decision, standing: int) -> None:
        """`peer`, whose state is that of round `standing`, is told that a round is decided."""
        if decision.round != standing + 1:
            raise Violation("All or nothing", f"{peer} at round {standing} is told to apply round {decision.round}")
        self._check_certified(peer, decision)
        known = self.decisions.setdefault(decision.round, decision)
        if known.payloads != decision.payloads or known.certificate.proposal != decision.certificate.proposal:
            raise Violation("Agreement", f"two results of round {decision.round}")
        self.voters[decision.round] = decision.certificate.proposal.voters
        self._check_valid(decision)

    def counted(self, peer: PeerId, decision: Decision, counted: Sequence[bool], offered: Sequence[float]) -> None:
        """What `peer` believes of what this life of it has `offered`, chunk by chunk."""
        for chunk, believed in enumerate(counted):
            facts, _ = msgpack.unpackb(decision.payloads[chunk])
            really = any(fact[0] == peer and fact[4] == offered[chunk] for fact in facts)
            if believed != really:
                raise Violation("Residual", f"{peer} keeps the wrong residual of chunk {chunk}")

    def holds(self, peer: PeerId, round: int, root: Digest) -> None:
        """`peer` stands on the state of `round`."""
        if round and round not in self.decisions:
            raise Violation("All or nothing", f"{peer} applied round {round} before anybody was told it is decided")
        if self.roots.setdefault(round, root) != root:
            raise Violation("All or nothing", f"{peer} holds another state of round {round} than the others")
        if peer not in self.members_at[round]:
            self.members_at[round].append(peer)

    def aborted(self, peer: PeerId, event: Aborted) -> None:
        """An attempt failed at `peer`."""
        self.aborts.append((event.round, event.attempt, event.reason))

    # -- the promises ---------------------------------------------------------------------------------------

    def _check_certified(self, peer: PeerId, decision: Decision) -> None:
        """Independent of the cores: real signatures of real majorities."""
        certificate, round = decision.certificate, decision.round
        proposal = certificate.proposal
        if not certificate.votes:
            raise Violation("All or nothing", f"{peer} is told to apply round {round}, which nobody has decided")
        before = self.voters.get(round - 1)
        if before is None:
            raise Violation("Agreement", f"round {round} is decided before round {round - 1}")
        for name, voters in (("old", before), ("new", proposal.voters)):
            votes = [vote.peer for vote in certificate.votes if vote.peer in voters]
            left = [leave.peer for leave in certificate.leaves if leave.peer in voters]
            entitled = len(voters) - len(left)
            first = next((voter for voter in voters if voter not in left), None)
            enough = 2 * len(set(votes)) > entitled or (2 * len(set(votes)) == entitled and first in votes)
            if not enough:
                raise Violation("Agreement", f"round {round} was decided without a quorum of its {name} voters")
        self._check_votes(certificate)
        if result_digest(decision.chunks) != proposal.result:
            raise Violation("Agreement", f"{peer} was told other chunks than those decided in round {round}")
        for ref, payload in zip(decision.chunks, decision.payloads, strict=True):
            if result_hash(ref.mask, payload) != ref.hash:
                raise Violation("Agreement", f"{peer} holds other bytes than those decided in round {round}")

    def _check_votes(self, certificate: Certificate) -> None:
        proposal = certificate.proposal
        for vote in certificate.votes:
            prepared = Prepared(
                proposal.round, proposal.part, certificate.ballot, proposal_digest(proposal), vote.peer, vote.signature
            )
            check_signature(prepared, vote.peer, FakeSigner(vote.peer))

    def _check_valid(self, decision: Decision) -> None:
        proposal = decision.certificate.proposal
        weights = dict(zip(proposal.members, proposal.weights, strict=True))
        if len(weights) != len(proposal.members):
            raise Violation("Validity", "a member is in the group twice")
        for chunk, (ref, payload) in enumerate(zip(decision.chunks, decision.payloads, strict=True)):
            facts, mean = msgpack.unpackb(payload)
            names = [fact[0] for fact in facts]
            if len(set(names)) != len(names):
                raise Violation("Validity", f"chunk {chunk} of round {decision.round} counts somebody twice")
            masked = [peer for index, peer in enumerate(proposal.members) if in_mask(ref.mask, index)]
            if sorted(masked) != sorted(names):
                raise Violation("Validity", f"the mask of chunk {chunk} does not say who is in it")
            if not names and any(proposal.weights):
                raise Violation("Validity", f"chunk {chunk} of round {decision.round} is the mean of nothing")
            for peer, round, root, place, amount, weight in facts:
                self._check_fact(decision, chunk, PeerId(peer), (round, root, place, amount, weight), weights)
            total = sum(weights[name] for name in names)
            right = sum(weights[fact[0]] * fact[4] for fact in facts) / total if total else 0.0
            if abs(mean - right) > 1e-9:
                raise Violation("Validity", f"chunk {chunk} of round {decision.round} is not the weighted mean")

    def _check_fact(
        self,
        decision: Decision,
        chunk: int,
        peer: PeerId,
        fact: tuple[int, bytes, int, float, int],
        weights: dict[PeerId, int],
    ) -> None:
        round, root, place, amount, weight = fact
        if round != decision.round or place != chunk:
            raise Violation(
                "Validity", f"round {decision.round} chunk {chunk} holds one of round {round} chunk {place}"
            )
        if root != decision.certificate.proposal.base_root:
            raise Violation("Fencing", f"{peer} contributed to round {round} from another state")
        if peer not in weights or weight != weights[peer]:
            raise Violation("Validity", f"{peer} counts with weight {weight} in round {round}")
        if not any(offer[1][chunk] == amount and offer[0] == weight for offer in self._offers[peer, round]):
            raise Violation("Validity", f"{peer} never contributed {amount} to round {round}")

    def history(self, round: int) -> Digest:
        """The history digest after `round`."""
        return next_history(self.decisions[round].certificate.proposal)

    def decided_at_once(self) -> int:
        """Rounds that were decided in their first attempt."""
        return sum(decision.certificate.proposal.attempt == 1 for decision in self.decisions.values())

    @property
    def newest(self) -> int:
        """The last round that anybody was told is decided."""
        return max(self.decisions, default=0)
