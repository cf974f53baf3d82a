"""The experts that are there at one time. A sequence keeps the panel that it began with, whatever comes or goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    missing: tuple[str, ...] = ()  # experts that there should be, and cannot be had now

    @property
    def names(self) -> dict[str, str]:
        """The members', by their keys."""
        return {each.key: each.name for each in self.members}

    @property
    def version(self) -> str:
        """In letters and digits; another for other experts, another prior or k."""
        priors = [f"{each:.6f}" for each in self.log_prior.tolist()]
        return version_of([*(each.key for each in self.members), *priors, str(self.k)])


def version_of(said: Iterable[str]) -> str:
    """A name for all that makes one mixture of experts another than the next."""
    return blake3("\n".join(said).encode()).hexdigest()[:SHOWN]


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Which experts there are now, and what has changed, in words; of names by keys."""
    said = [f"experts: {', '.join(after.values())}"]
    for word, these, those in (("added", after, before), ("removed", before, after)):
        if only := [name for key, name in these.items() if key not in those]:
            said.append(f"{word}: {', '.join(only)}")
    return "; ".join(said)
