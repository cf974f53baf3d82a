"""Sees everything that happens in a simulated swarm and holds it to the promises.

A broken promise raises Violation with the promise's name; nothing here looks at how the cores work inside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgpack

from shoal.protocol.base.effects import Effect
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.rounds.agreement.certificate import in_mask
from shoal.protocol.rounds.allreduce.shelf import Decision
from shoal.protocol.rounds.matchmaking.milestones import Aborted
from tests.simulation.ledger import Ledger
from tests.simulation.promises import Violation
from tests.simulation.proofs import Proofs


class Oracle:
    """Checks every event and every outgoing message against all earlier ones."""

    def __init__(self, creator: PeerId) -> None:
        self.ledger = Ledger(creator)
        self.decisions: dict[int, Decision] = {}  # that somebody was told of
        self.roots: dict[int, Digest] = {}
        self.members_at: dict[int, list[PeerId]] = defaultdict(list)
        self.aborts: list[tuple[int, int, str]] = []
        self.begun: set[int] = set()
        self.was_too_small = False  # after the start
        self.left: list[PeerId] = []  # for good
        self.proofs = Proofs(self.ledger)
        self._offers: dict[tuple[PeerId, int], list[tuple[int, tuple[float, ...]]]] = defaultdict(list)

    # -- what the peers tell --------------------------------------------------------------------------------

    def offered(self, peer: PeerId, round: int, weight: int, amounts: Sequence[float]) -> None:
        """`peer` has something to contribute to `round`."""
        self._offers[peer, round].append((weight, tuple(amounts)))

    def saw(self, peer: PeerId, effect: Effect) -> None:
        """An effect of `peer` goes out, or to its disk."""
        self.ledger.saw(peer, effect)
        self.proofs.saw(effect)

    def begins(self, round: int) -> None:
        """Somebody is ready for `round`."""
        self.begun.add(round)

    def committed(self, peer: PeerId, decision: Decision, standing: int) -> None:
        """`peer`, whose state is that of round `standing`, is told that a round is decided."""
        if decision.round != standing + 1:
            raise Violation("All or nothing", f"{peer} at round {standing} is told to apply round {decision.round}")
        self.proofs.check(peer, decision)
        known = self.decisions.setdefault(decision.round, decision)
        if known.payloads != decision.payloads or known.certificate.proposal != decision.certificate.proposal:
            raise Violation("Agreement", f"two results of round {decision.round}")
        if self.ledger.decided.get(decision.round) != decision.certificate.proposal:
            raise Violation("Agreement", f"{peer} is told of another value of round {decision.round} than was decided")
        self._check_valid(decision)

    def counted(self, peer: PeerId, decision: Decision, counted: Sequence[bool], offered: Sequence[float]) -> None:
        """`peer` believes of each chunk of what it `offered` in this life that it was `counted`, or not."""
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
        self.aborts.append((event.round, event.attempt, str(event.reason)))

    def waiting(self, standing: int, reason: str) -> None:
        """A leader at round `standing` cannot close its group, and says why."""
        self.was_too_small |= standing > 0 and "members" in reason

    # -- the promises ---------------------------------------------------------------------------------------

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

    def decided_at_once(self) -> int:
        """Rounds that were decided in their first attempt."""
        return sum(decision.certificate.proposal.attempt == 1 for decision in self.decisions.values())

    @property
    def newest(self) -> int:
        """The last round that anybody was told is decided."""
        return max(self.decisions, default=0)
