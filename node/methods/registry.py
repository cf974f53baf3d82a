"""The method that a manifest names, with its settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from shoal.node.methods.co2 import CO2
from shoal.node.methods.ddp import DDP
from shoal.node.methods.delayed import DelayedDiLoCo
from shoal.node.methods.diloco import DiLoCo
from shoal.node.methods.eager import EagerDiLoCo
from shoal.node.methods.gossip import Gossip
from shoal.node.methods.method import Method
from shoal.node.methods.noloco import NoLoCo
from shoal.node.methods.sparseloco import SparseLoCo
from shoal.node.methods.streaming import Streaming
from shoal.node.methods.timetable import Timetable
from shoal.node.spec.manifest import Manifest
from shoal.node.state.layout import Layout
from shoal.node.state.shape import StateShape
from shoal.node.trainer.schedule import rate
from shoal.protocol.compression import codec

EPSILON = 1e-8  # AdamW's


def method_of(manifest: Manifest, layout: Layout) -> Method:
    """The method of a run whose model has this layout."""
    return METHODS[manifest.method.name](manifest, layout)


def timetable_of(manifest: Manifest, layout: Layout) -> Timetable:
    """When the rounds of that run begin and end."""
    return Timetable(method_of(manifest, layout))


def shape_of(manifest: Manifest, layout: Layout) -> StateShape:
    """What the run's committed state is made of."""
    agreed, _ = method_of(manifest, layout).begin(torch.empty(0))
    return StateShape(layout, manifest.rounds.state_chunk_bytes, tuple(agreed))


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
