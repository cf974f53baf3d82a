"""A laboratory small enough for tests."""

from __future__ import annotations

import torch

from shoal.node.lab.network import Network
from shoal.node.lab.registry import set_up
from shoal.node.lab.study import Study
from shoal.node.lab.virtual_workers import VirtualWorkers
from shoal.node.manifest.manifest import Manifest, ModelSpec
from shoal.node.manifest.method import MethodSpec
from shoal.node.training.data.corpus import Corpus

INNER_STEPS = 4
TINY = Manifest(
    name="tiny",
    model=ModelSpec(dim=16, layers=2, heads=2, kv_heads=1, hidden=24, context=16),
    method=MethodSpec(inner_steps=INNER_STEPS, batch=2, inner_lr=1e-2, warmup_steps=2),
)
TEXT = torch.frombuffer(bytearray(b"so much depends upon a red wheel barrow\n" * 50), dtype=torch.uint8)
CORPUS = Corpus(TEXT, TEXT[:200], b"", 1, 0)  # type: ignore[arg-type]


def crowd_of(workers: int, steps: int = 8, seed: int = 0) -> VirtualWorkers:
    return VirtualWorkers(TINY.model_copy(update={"seed": seed}), TEXT, workers, steps)


def study_of(name: str, crowd: VirtualWorkers, *given: str, lose: float = 0.0) -> Study:
    made = set_up(name, given, crowd, INNER_STEPS)
    seed, values = crowd.manifest.seed, made.values
    network = Network(made.method.exchange, crowd.count, seed, lose=lose, degree=made.degree, values=values)
    return Study(crowd, made.method, network)
