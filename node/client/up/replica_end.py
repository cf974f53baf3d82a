"""How replicas end: each peer's weights are measured, and their plain mean.

In a run of replicas that mean is the result. Where a state is agreed, and workers' weights differ from it all the same
(diloco-eager, streaming-diloco), the state is, and is told beside them.

Few exchanges suffice while training goes on if all replicas are merged once at its end (arXiv 2507.06542): single
replicas are worse than their mean, and how far they are apart says how well the exchanges have held them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.node.api.answers import Answer
from shoal.node.client.up.plan import Plan
from shoal.node.client.up.processes import Jobs
from shoal.protocol.base.errors import LocalError

MERGED = "merged.safetensors"


@dataclass(frozen=True, slots=True)
class Replicas:
    """Validation losses."""

    each: tuple[float, ...]  # of the replicas
    merged: float  # of their mean
    file: str = MERGED  # where that is
    agreed: float | None = None  # of the state that all agree on, if they do

    @property
    def mean(self) -> float:
        """Of the replicas' losses."""
        return sum(self.each) / len(self.each)

    @property
    def spread(self) -> float:
        """From the best replica to the worst."""
        return max(self.each) - min(self.each)

    def as_json(self) -> dict[str, Any]:
        """The object of `--json`."""
        return {"each": list(self.each), "mean": self.mean, "spread": self.spread, "merged": self.merged} | (
            {} if self.agreed is None else {"agreed": self.agreed}
        )

    def __str__(self) -> str:
        """For the person who watched."""
        return (
            f"{len(self.each)} replicas: validation loss {self.mean:.3f} on average, {self.spread:.3f} from the best "
            f"to the worst; their mean, {self.file}, has {self.merged:.3f}"
            + ("." if self.agreed is None else f", the state that all agree on {self.agreed:.3f}.")
        )


async def measure(plan: Plan, jobs: Jobs, device: str, files: Sequence[Path]) -> tuple[Answer, Replicas]:
    """What the replicas in these files are worth, and their mean, which is written to the folder of the play.

    Each lies in the folder of its peer. The other answer is that of `validate` for the mean. LocalError for no files.
    """
    if not files:
        raise LocalError("no peer is left at the end, so there is no replica to measure; see the logs")
    merged = await jobs.run("merge", "merge", plan.manifest_file, plan.out / MERGED, *files)
    each = [await _loss(plan, jobs, device, f"validate-{file.parent.name}", file) for file in files]
    mean = await jobs.run("validate-merged", "validate", plan.manifest_file, merged["file"], device, *plan.data)
    return mean, Replicas(tuple(each), mean["loss"])


async def _loss(plan: Plan, jobs: Jobs, device: str, name: str, file: Path) -> float:
    answer = await jobs.run(name, "validate", plan.manifest_file, file, device, *plan.data)
    return float(answer["loss"])
