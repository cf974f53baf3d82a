"""What a run needs to know of the node that it is on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from shoal.node.base.extensions import find_extension
from shoal.node.base.fault_injection import FaultTrigger
from shoal.node.base.options import AUTO, NodeSettings
from shoal.node.base.step_options import TrainerOptions
from shoal.node.ipc.vectors import Sizes
from shoal.node.manifest.manifest import Manifest
from shoal.node.supervisor.process import BUILT_IN, WorkerSettings
from shoal.node.training.checkpoint.keep import Keeping


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Private to the node; nothing of it is agreed with others."""

    folder: Path  # the run's own
    threads: int  # of the worker
    data: tuple[str, ...]  # paths that its worker reads
    trains: bool
    keeping: Keeping
    fault: FaultTrigger | None = None
    device: str = AUTO  # on which the worker trains
    trainer: TrainerOptions = field(default_factory=TrainerOptions)  # how it makes its steps

    @classmethod
    def of(
        cls, node: NodeSettings, folder: Path, data: tuple[str, ...], trains: bool, fault: FaultTrigger | None
    ) -> RunSettings:
        """Those of a run on a node that was started so."""
        keeping = Keeping(node.checkpoint_every, node.checkpoint_keep)
        return cls(folder, node.threads, data, trains, keeping, fault, node.device, node.trainer)

    def worker(self, manifest: Manifest, sizes: Sizes) -> WorkerSettings:
        """What the run's worker is started with."""
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
    """Of the workers of such models; that of a script's own is the script, which comes by itself."""
    if model == "custom":
        return ()
    found = find_extension(model)
    return BUILT_IN if found is None else found.program
