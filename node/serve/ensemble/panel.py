"""The experts that are there at one time. A sequence keeps the panel that it began with, whatever comes or goes."""

from __future__ import annotations

from dataclasses import dataclass

from blake3 import blake3
from torch import Tensor

from shoal.node.serve.expert import Expert

SHOWN = 16  # characters of a version


@dataclass(slots=True, eq=False)
class Member:
    """One expert. What is read in its file does not change; `trouble` does, and belongs to the engine's thread."""

    name: str
    key: str  # another for other weights
    expert: Expert
    foreseen: tuple[float, ...] = ()  # log p of each window of the text that the prior is estimated on
    made_of: tuple[str, ...] = ()  # the experts that were merged, if it is a merge
    trouble: str = ""  # why its last call has failed, if it has


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """Experts and their prior."""

    members: tuple[Member, ...]
    log_prior: Tensor  # (E,) in float64
    k: int | None  # how many write; None: all

    @property
    def version(self) -> str:
        """In letters and digits; another for other experts, another prior or k."""
        said = [*(each.key for each in self.members), *(f"{each:.6f}" for each in self.log_prior.tolist()), str(self.k)]
        return blake3("\n".join(said).encode()).hexdigest()[:SHOWN]
