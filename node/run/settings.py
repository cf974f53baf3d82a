"""A run's settings on this node."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from shoal.node.base.extensions import find_extension
from shoal.node.base.fault_injection import FaultTrigger
from shoal.node.base.options import AUTO
from shoal.node.base.step_options import TrainerOptions
from shoal.node.ipc.vectors import Sizes
from shoal.node.manifest.manifest import Manifest
from shoal.node.run.meters import Tally
from shoal.node.supervisor.process import BUILT_IN, WorkerSettings
from shoal.node.training.checkpoint.keep import Keeping


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Settings of the node's own choice, which other members need not share."""

    folder: Path  # of the run, on this node
    threads: int  # of the worker
    data: tuple[str, ...]  # paths that the worker reads
    trains: bool
    keeping: Keeping
    fault: FaultTrigger | None = None
    device: str = AUTO  # on which the worker trains
    trainer: TrainerOptions = field(default_factory=TrainerOptions)
    tally: Tally = field(default_factory=Tally)  # of the node

    def worker(self, manifest: Manifest, sizes: Sizes) -> WorkerSettings:
        """The settings with which the run's worker is started."""
        return WorkerSettings(
            folder=self.folder,
            log=self.folder / "worker.log",
            manifest=manifest.canonical(),
            sizes=sizes,
            threads=self.threads,
            device=self.device,
            data=self.data,
            trainer=self.trainer,
            program=_program(manifest.model.name),
        )


def _program(model: str) -> tuple[str, ...]:
    """The command line of a worker for this model; empty for custom runs, whose script connects by itself."""
    if model == "custom":
        return ()
    found = find_extension(model)
    return BUILT_IN if found is None else found.program
