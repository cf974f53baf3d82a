"""What the rounds of a run of replicas work with, and what they see of the others."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from shoal.protocol.averaging.outbox import Outbox
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import PeerId
from shoal.protocol.membership.view import View
from shoal.protocol.messages.log import Register
from shoal.protocol.messages.membership import RunStatus
from shoal.protocol.replicas.facts import ReplicaFacts


class Counted:
    """Those whom the register names and who live: a `View`. Of others the rounds know nothing."""

    def __init__(self, view: View, register: Callable[[], Register]) -> None:
        self._view, self._register = view, register
        self._read: tuple[Register | None, frozenset[PeerId]] = (None, frozenset())

    def counts(self, peer: PeerId) -> bool:
        """Whether `peer` is a member."""
        register = self._register()
        if register is not self._read[0]:
            self._read = register, frozenset(member.peer for member in register.members)
        return peer in self._read[1]

    def alive(self) -> Sequence[PeerId]:
        """Live members without ourselves, in a fixed order."""
        return [peer for peer in self._view.alive() if self.counts(peer)]

    def is_alive(self, peer: PeerId) -> bool:
        """Whether `peer` is one of them."""
        return self.counts(peer) and self._view.is_alive(peer)

    def status(self, peer: PeerId) -> RunStatus | None:
        """What one of them says of itself."""
        return self._view.status(peer) if self.counts(peer) else None


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
    log_number: Callable[[], int]  # of the last entry that is known here: each MEET says it

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
