"""One training of the laboratory, from what it is called to what came of it.

The references that a method is held against (node/trainer/baseline.py) are one worker each, which never gets beyond its
warm start: *alone* with the batches of one lane, *joined* with those of all lanes together.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from shoal.node.lab.crowd import Crowd
from shoal.node.lab.network import Network
from shoal.node.lab.registry import WrongSetting, plan
from shoal.node.lab.study import Study
from shoal.node.spec.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Training:
    """What is trained beside the manifest, which says model, batches, inner optimizer, H and seed."""

    method: str
    settings: tuple[str, ...] = ()  # key=value
    workers: int = 8
    lanes: int = 1  # batches that a worker takes together
    steps: int = 400
    warm: int = 0  # steps that all make together before the method begins
    lose: float = 0.0  # the probability that an exchange fails


def prepare(training: Training, manifest: Manifest, text: Tensor, device: str = "cpu") -> tuple[Study, Crowd]:
    """Its workers, before the first step; WrongSetting if there can be no such training. `text`: uint8, (bytes,)."""
    crowd = Crowd(manifest, text, training.workers, training.steps, lanes=training.lanes, device=device)
    made = plan(training.method, training.settings, crowd, manifest.method.inner_steps)
    if training.warm and made.method.wants_gradients:
        raise WrongSetting(f"{training.method} needs no warm start: all its steps are made together")
    network = Network(
        made.method.exchange,
        training.workers,
        manifest.seed,
        lose=training.lose,
        degree=made.degree,
        values=made.values,
    )
    return Study(crowd, made.method, network, training.warm), crowd
