"""What the rounds of a run of replicas work with, and what they see of the others."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from shoal.protocol.averaging.outbox import Outbox
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import PeerId
from shoal.protocol.membership.view import View
from shoal.protocol.messages.membership import RunStatus
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
    length: Estimate  # learned: how long an exchange takes for each of its payloads

    def patience(self) -> float:
        """Seconds that those who still train are waited for before they are called to hand in."""
        return max(self.spread.deadline(), self.facts.policy.slack)

    def forbearance(self, base: int, peer: PeerId) -> float:
        """Seconds that `peer` must have waited for us, by our clock, before we hand in for its sake.

        As long as we would wait for others: a word alone hurries nobody out of training. Less if most of those beside
        it are through with the round after `base` as well, or while we have not learned yet what is usual.
        """
        others = standing(self.view, self.facts)
        most = pack([round for each, round in others.items() if each != peer])
        is_known = self.spread.samples > 0 and (most is None or most <= base)
        return self.patience() if is_known else max(self.spread.floor, self.facts.policy.slack)


def standing(view: View, facts: ReplicaFacts) -> dict[PeerId, int]:
    """The live members of this run that hold a replica and train, and after which round they stand, of its rounds.

    As long as the run has members, so nothing to ask for at every message.
    """
    found = {}
    for peer in view.alive():
        status = view.status(peer)
        if status is not None and stands(status, facts):
            found[peer] = status.round
    return found


def stands(status: RunStatus | None, facts: ReplicaFacts) -> bool:
    """Whether who says this of itself may be somebody's partner."""
    if status is None or not status.trains or status.history != facts.history:
        return False
    return facts.round <= status.round <= facts.limit


def near(here: Mapping[PeerId, int], base: int, window: int) -> list[PeerId]:
    """Those among whom the partners of the round after `base` are drawn."""
    return [peer for peer, round in here.items() if abs(base - round) <= window]


def pack(rounds: Collection[int]) -> int | None:
    """Where most of the others are, or further: the lower median, which no single liar moves far. None: nobody is."""
    return sorted(rounds)[(len(rounds) - 1) // 2] if rounds else None
