"""The two kinds of trust among voters: what a quorum is, and in which phases it decides.

No other file asks which kind it is. That any two quorums share a voter that does not lie is all that safety rests on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.log import Phase


class Trust(Protocol):
    """A policy over voters, of whom the one with the longest standing comes first."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """In this order each voter votes; who has voted in the last but one may not forget it."""

    @property
    def may_branch(self) -> bool:
        """Whether members may go on by themselves once no quorum can be reached."""

    def is_quorum(self, present: Collection[PeerId], voters: Sequence[PeerId], faults: int) -> bool:
        """Whether those of `voters` who are `present` may decide, where `faults` of the voters may lie."""


@dataclass(frozen=True, slots=True)
class Crash:
    """Peers die and come back, but do not lie (Paxos). A proposal stands as its own prepare.

    Each voter has power 2 and the first 3, so a run shrinks to its last voter (dynamic-linear voting, Jajodia and
    Mutchler 1990): with two, the first may go on alone.
    """

    phases: tuple[Phase, ...] = (Phase.COMMIT,)
    may_branch: bool = True

    def is_quorum(self, present: Collection[PeerId], voters: Sequence[PeerId], faults: int) -> bool:
        """More than half of the power."""
        power = sum(2 for voter in voters if voter in present) + (bool(voters) and voters[0] in present)
        return 2 * power > 2 * len(voters) + 1


@dataclass(frozen=True, slots=True)
class Byzantine:
    """Up to `faults` of the voters lie (PBFT): any two quorums share one more than those."""

    phases: tuple[Phase, ...] = (Phase.PREPARE, Phase.COMMIT)
    may_branch: bool = False  # liars would found one whenever they like

    def is_quorum(self, present: Collection[PeerId], voters: Sequence[PeerId], faults: int) -> bool:
        """floor((n + f) / 2) + 1 voters."""
        return sum(voter in present for voter in voters) >= (len(voters) + faults) // 2 + 1
