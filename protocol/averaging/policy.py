"""What a round begins with, as all members agree on it, and what one of them brings."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.protocol.averaging.apart import OPEN, Standing
from shoal.protocol.base.ids import Digest


@dataclass(frozen=True, slots=True)
class Base:
    """What a round builds on: the state after `round`, and which entry of the log decided it."""

    round: int
    entry: int  # 0: the run's first state
    history: Digest
    root: Digest


@dataclass(frozen=True, slots=True)
class Ready:
    """What we bring to a round."""

    weight: int  # tokens behind our contribution
    up: int = 0  # of our line, in bytes per second; 0 = not measured
    down: int = 0
    standing: Standing = OPEN


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
