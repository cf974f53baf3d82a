"""The two references of `--baseline`, trained after the swarm: two one-thread processes at a time, longest first."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Protocol

from shoal.node.client.up.plan import Plan
from shoal.node.client.up.processes import Jobs

AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class References:
    """Validation losses of training alone and as one big machine, each at its best learning rate."""

    alone: float
    joined: float

    def gap_recovered(self, swarm: float) -> float | None:
        """How far from alone to joined the swarm has come; None where joined is no better than alone."""
        from shoal.node.training.trainer.baseline import gap_recovered

        return gap_recovered(self.alone, swarm, self.joined) if self.joined < self.alone else None


class Note(Protocol):
    """Where it is noted how a training came out."""

    def __call__(self, event: str, text: str, **fields: Any) -> None: ...


async def train_references(plan: Plan, jobs: Jobs, note: Note) -> References:
    """Train every reference, noting how each came out as soon as it is known."""
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
