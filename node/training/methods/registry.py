"""Makes the method that a manifest names, with the manifest's settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from shoal.node.manifest.manifest import Manifest
from shoal.node.training.methods.ddp import DDP
from shoal.node.training.methods.diloco import DiLoCo
from shoal.node.training.methods.gossip import Gossip
from shoal.node.training.methods.late import CO2, DelayedDiLoCo, EagerDiLoCo
from shoal.node.training.methods.method import Method
from shoal.node.training.methods.noloco import NoLoCo
from shoal.node.training.methods.schedule import rate
from shoal.node.training.methods.sparseloco import SparseLoCo
from shoal.node.training.methods.streaming import Streaming
from shoal.node.training.methods.timetable import Timetable
from shoal.node.training.models.layout import Layout
from shoal.protocol.tensors.compression import codec

EPSILON = 1e-8  # AdamW's


def method_of(manifest: Manifest, layout: Layout) -> Method:
    """The method of a run whose model has this layout."""
    return METHODS[manifest.method.name](manifest, layout)


def timetable_of(manifest: Manifest, layout: Layout) -> Timetable:
    """When the rounds of a run with this layout begin and end."""
    return Timetable(method_of(manifest, layout))


def _ddp(manifest: Manifest, layout: Layout) -> Method:
    spec = manifest.method

    def at(step: int) -> float:  # from 1
        return rate(manifest, step - 1, manifest.rounds.last)

    return DDP(at, spec.betas, EPSILON, spec.weight_decay, spec.clip, layout.undecayed)


def _streaming(manifest: Manifest, layout: Layout) -> Method:
    spec = manifest.method
    assert spec.strides is not None
    assert spec.delay is not None
    assert spec.alpha is not None
    return Streaming(layout, spec.strides, spec.inner_steps, spec.delay, spec.alpha, spec.outer_lr, spec.outer_momentum)


def _co2(manifest: Manifest, layout: Layout) -> Method:
    spec = manifest.method
    clip = math.inf if spec.outer_clip is None else spec.outer_clip
    return CO2(spec.inner_steps, spec.outer_lr, spec.outer_momentum, clip, spec.typical_change)


def _sparseloco(manifest: Manifest, layout: Layout) -> Method:
    spec = manifest.method
    assert spec.error_decay is not None
    return SparseLoCo(spec.inner_steps, spec.outer_lr, spec.error_decay, codec(manifest.codec.scatter))


def _noloco(manifest: Manifest, layout: Layout) -> Method:
    spec = manifest.method
    assert spec.alpha is not None
    assert spec.beta is not None
    assert spec.gamma is not None
    assert spec.delay is not None
    return NoLoCo(spec.inner_steps, spec.alpha, spec.beta, spec.gamma, spec.delay)


def _gossip(manifest: Manifest, layout: Layout) -> Method:
    assert manifest.method.delay is not None
    return Gossip(manifest.method.inner_steps, delay=manifest.method.delay)


def _outer(kind: type[DiLoCo]) -> Callable[[Manifest, Layout], Method]:
    def make(manifest: Manifest, layout: Layout) -> Method:
        spec = manifest.method
        return kind(spec.inner_steps, spec.outer_lr, spec.outer_momentum)

    return make


METHODS: Mapping[str, Callable[[Manifest, Layout], Method]] = {
    "ddp": _ddp,
    "diloco": _outer(DiLoCo),
    "diloco-delayed": _outer(DelayedDiLoCo),
    "diloco-eager": _outer(EagerDiLoCo),
    "co2": _co2,
    "streaming-diloco": _streaming,
    "sparseloco": _sparseloco,
    "noloco": _noloco,
    "gossip": _gossip,
}
