"""What the result of a play is measured against: the two references of `--baseline`, and single replicas.

References are trained after the swarm, two one-thread processes at a time, the longest first.

Where peers' own weights differ from the state that all agree on in the end (noloco, gossip, diloco-eager,
streaming-diloco), that state is the result, and the losses of the replicas are told beside it. Few exchanges suffice
while training goes on if all replicas are merged once at its end (arXiv 2507.06542): single replicas are worse than
their mean, and the spread of their losses tells how well the exchanges held them together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.node.api.answers import Answer
from shoal.node.client.up.peers import LocalPeer
from shoal.node.client.up.plan import Plan
from shoal.node.client.up.processes import Jobs
from shoal.protocol.base.errors import LocalError

# -- references ----------------------------------------------------------------------------------------------------


AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class References:
    """Validation losses of training alone and as one big machine, each at its best learning rate."""

    alone: float
    joined: float

    def gap_recovered(self, swarm: float) -> float | None:
        """The swarm's share of the distance from `alone` to `joined`; None if `joined` is no better than `alone`."""
        from shoal.node.training.trainer.baseline import gap_recovered

        return gap_recovered(self.alone, swarm, self.joined) if self.joined < self.alone else None


async def train_references(plan: Plan, jobs: Jobs, note: Callable[..., None]) -> References:
    """Train every reference; `note` (`Swarm.note`) gets each one's result as soon as it is known."""
    from shoal.node.training.trainer.baseline import best, references  # brings torch

    wanted = references(plan.manifest, len(plan.peers), plan.rounds, plan.data)
    slots = asyncio.Semaphore(AT_ONCE)
    done = 0

    async def train(number: int) -> float:
        nonlocal done
        async with slots:
            began = time.monotonic()
            answer = await jobs.run(
                f"baseline-{number + 1}",
                "baseline",
                plan.manifest_file,
                len(plan.peers),
                plan.rounds,
                number,
                *plan.data,
            )
        done += 1
        kind = "alone" if len(wanted[number].lanes) == 1 else "joined"
        note(
            "reference",
            f"reference {done} of {len(wanted)}: {kind} at learning rate {wanted[number].inner_lr:g} reaches "
            f"{answer['loss']:.3f} ({time.monotonic() - began:.0f} s)",
            reference=kind,
            inner_lr=wanted[number].inner_lr,
            **answer,
        )
        return float(answer["loss"])

    note("baseline", f"training {len(wanted)} references, {AT_ONCE} at a time")
    losses = await asyncio.gather(*(train(number) for number in range(len(wanted))))
    return References(*best(list(zip(wanted, losses, strict=True))))


# -- replicas ------------------------------------------------------------------------------------------------------


MERGED = "merged.safetensors"


@dataclass(frozen=True, slots=True)
class Replicas:
    """Validation losses of the replicas."""

    each: tuple[float, ...]
    merged: float  # of the replicas' mean
    agreed: float  # of the state that all agree on
    file: str = MERGED  # with that mean

    @property
    def mean(self) -> float:
        """The mean of the replicas' losses."""
        return sum(self.each) / len(self.each)

    @property
    def spread(self) -> float:
        """The difference between the worst replica's loss and the best one's."""
        return max(self.each) - min(self.each)

    def as_json(self) -> dict[str, Any]:
        """The object of `--json`."""
        found = {"each": list(self.each), "mean": self.mean, "spread": self.spread}
        return found | {"merged": self.merged, "agreed": self.agreed}

    def __str__(self) -> str:
        """For the person who watched."""
        return (
            f"{len(self.each)} replicas: validation loss {self.mean:.3f} on average, {self.spread:.3f} from the best "
            f"to the worst; their mean, {self.file}, has {self.merged:.3f}, the state that all agree on "
            f"{self.agreed:.3f}."
        )


async def measure(plan: Plan, jobs: Jobs, device: str, peers: Sequence[LocalPeer]) -> tuple[Answer, Replicas]:
    """Measure the state that these peers agree on, each one's own weights, and their mean, which is written to a file.

    Returns the answer of `validate` for the state, and all losses. LocalError if there are no peers.
    """
    if not peers:
        raise LocalError(
            "no peer is left at the end, so there is no replica to measure; see the logs", code="nobody-left"
        )
    files = [peer.own_file for peer in peers]
    merged = await jobs.run("merge", "merge", plan.manifest_file, plan.out / MERGED, *files)
    each = [await _loss(plan, jobs, device, f"validate-{file.parent.name}", file) for file in files]
    mean = await _loss(plan, jobs, device, "validate-merged", Path(merged["file"]))
    agreed = await jobs.run("validate-final", "validate", plan.manifest_file, peers[0].state_file, device, *plan.data)
    return agreed, Replicas(tuple(each), mean, agreed["loss"])


async def _loss(plan: Plan, jobs: Jobs, device: str, name: str, file: Path) -> float:
    answer = await jobs.run(name, "validate", plan.manifest_file, file, device, *plan.data)
    return float(answer["loss"])
