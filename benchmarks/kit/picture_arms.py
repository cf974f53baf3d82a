"""What experts on pictures are compared with, at equal training compute: networks of several sizes on all pictures.

Compute is 6 x parameters x pictures; without the router's. The larger a network is, the fewer steps it makes: one
as large as an expert costs as much to ask as top-1, and those of twice and of all experts' parameters as much as top-2
and as all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from shoal.node.diffusion.mixture import Mixture
from shoal.node.diffusion.network import Router, Velocity
from shoal.node.experts.parts import experts_of, part_manifest
from shoal.node.extensions import register_extensions
from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.model import FlowSpec
from shoal.node.training.data.corpus import load_corpus
from shoal.node.training.models.layout import Layout
from shoal.node.training.models.registry import build
from shoal.node.training.trainer.inner import InnerTrainer


@dataclass(frozen=True, slots=True)
class Job:
    """One network to train in a process of its own."""

    name: str
    manifest: Manifest
    paths: tuple[Path, ...] = ()


def monolith(family: Manifest, times: int) -> Job:
    """A network of about `times` an expert's parameters, on all pictures, for the compute of all experts together."""
    small, experts = family.model, experts_of(family)
    assert isinstance(small, FlowSpec)
    assert experts.clusters is not None
    wider = math.sqrt(times)
    large = small.model_copy(update={"width": _eights(small.width * wider), "hidden": _eights(small.hidden * wider)})
    every = family.method.inner_steps
    steps = experts.steps * experts.clusters.count * small.parameters / large.parameters
    rate = family.method.inner_lr / wider  # wider networks want smaller steps: 1 / width (arXiv 2203.03466)
    table = family.model_dump() | {
        "name": f"monolith-{times}",
        "model": large.model_dump(),
        "method": family.method.model_copy(update={"name": "diloco", "inner_lr": rate}).model_dump(),
        "rounds": family.rounds.model_dump() | {"last": max(1, round(steps / every))},
        "experts": None,
    }
    return Job(f"monolith x {times}", Manifest.model_validate(table))


def parts(family: Manifest, file: Path | None) -> list[Job]:
    """Its experts, in order, and its router at the end."""
    paths = () if file is None else (file,)
    return [Job(part.name, part_manifest(family, part), paths) for part in experts_of(family).parts]


def train(job: Job) -> Tensor:
    """The weights (d,) in the end."""
    torch.set_num_threads(1)
    register_extensions()
    trainer = InnerTrainer(job.manifest, load_corpus(job.manifest.data, job.paths))
    last = job.manifest.rounds.last
    assert last is not None
    for round in range(1, last + 1):
        trainer.train(round, [0])
    return trainer.read()


def alone(job: Job, weights: Tensor) -> Mixture:
    """One network as a mixture of one."""
    return Mixture([_velocity(job, weights)], [0], None)


def together(jobs: Sequence[Job], weights: Sequence[Tensor], top: int | None = None) -> Mixture:
    """Experts, and the router that comes last."""
    experts = [_velocity(job, each) for job, each in zip(jobs[:-1], weights[:-1], strict=True)]
    router = _loaded(jobs[-1], weights[-1])
    assert isinstance(router, Router)
    return Mixture(experts, range(len(experts)), router, top)


def _velocity(job: Job, weights: Tensor) -> Velocity:
    model = _loaded(job, weights)
    assert isinstance(model, Velocity)
    return model


def _loaded(job: Job, weights: Tensor) -> torch.nn.Module:
    register_extensions()
    model = build(job.manifest)
    Layout.of(model).load(weights, model)
    return model.eval().requires_grad_(False)


def _eights(size: float) -> int:
    return max(8, 8 * round(size / 8))
