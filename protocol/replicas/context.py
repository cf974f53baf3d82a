"""What the rounds of a run of replicas work with, and what they see of the others."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

from shoal.protocol.context import View
from shoal.protocol.estimate import Estimate
from shoal.protocol.ids import PeerId
from shoal.protocol.outbox import Outbox
from shoal.protocol.replicas.facts import ReplicaFacts


@dataclass(frozen=True, slots=True)
class Means:
    """Given once, changed by none of them."""

    me: PeerId
    facts: ReplicaFacts
    view: View
    outbox: Outbox
    rng: random.Random
    spread: Estimate  # learned: how much later than the first of two the second is ready
    pace: Estimate  # learned: how long a live partner is silent while it works

    def patience(self) -> float:
        """Seconds that those who still train are waited for before they are called to hand in."""
        return max(self.spread.deadline(), self.facts.policy.slack)


def standing(view: View, facts: ReplicaFacts) -> dict[PeerId, int]:
    """The live members of this run that hold a replica and train, and after which round they stand, of its rounds.

    As long as the run has members, so nothing to ask for at every message.
    """
    found = {}
    for peer in view.alive():
        status = view.status(peer)
        if status is not None and status.trains and status.history == facts.history and _may_be(status.round, facts):
            found[peer] = status.round
    return found


def pack(rounds: Collection[int]) -> int | None:
    """Where most of the others are, or further: the lower median, which no single liar moves far. None: nobody is."""
    return sorted(rounds)[(len(rounds) - 1) // 2] if rounds else None


def _may_be(round: int, facts: ReplicaFacts) -> bool:
    return facts.round <= round <= facts.limit
