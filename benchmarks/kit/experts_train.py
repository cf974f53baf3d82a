"""Trains models in this process, without a network: the dense models to compare with, and HDEE's experts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from shoal.node.manifest.manifest import Manifest
from shoal.node.training.data.corpus import load_corpus
from shoal.node.training.trainer.inner import InnerTrainer


@dataclass(frozen=True, slots=True)
class Job:
    """A training: all rounds of a manifest, on the joined batches of these lanes, from the parameters in `start`."""

    name: str
    manifest: Manifest
    lanes: tuple[int, ...]
    start: Path | None
    out: Path

    @property
    def tokens(self) -> int:
        """The number of tokens that are trained on."""
        method, last = self.manifest.method, self.manifest.rounds.last
        assert last is not None
        return last * method.inner_steps * method.batch * self.manifest.model.context * len(self.lanes)


def train(job: Job) -> Path:
    """Trains on one thread, unless the file is there already; the file of the parameters, a flat vector."""
    if job.out.exists():
        return job.out
    torch.set_num_threads(1)
    trainer = InnerTrainer(job.manifest, load_corpus(job.manifest.data))
    if job.start is not None:
        trainer.load(read(job.start))
    assert job.manifest.rounds.last is not None
    for round in range(1, job.manifest.rounds.last + 1):
        trainer.train(round, job.lanes)
    job.out.parent.mkdir(parents=True, exist_ok=True)
    fresh = job.out.with_suffix(".new")
    torch.save(trainer.read(), fresh)
    return fresh.replace(job.out)


def read(file: Path) -> Tensor:
    """The parameters in a file."""
    theta: Tensor = torch.load(file, weights_only=True)
    return theta
