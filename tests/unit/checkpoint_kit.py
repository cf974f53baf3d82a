"""A small model's committed state, and checkpoints of it."""

from __future__ import annotations

from pathlib import Path

import torch

from shoal.node.ipc.shm import FloatArray
from shoal.node.ipc.vectors import moments_size
from shoal.node.manifest.manifest import Manifest, ModelSpec, RoundSpec
from shoal.node.training.checkpoint.about import About
from shoal.node.training.checkpoint.write import write_checkpoint
from shoal.node.training.models.registry import layout_of
from shoal.node.training.state.committed import CommittedState
from shoal.node.training.state.shape import StateShape
from shoal.protocol.averaging.policy import Base
from shoal.protocol.base.ids import Digest, PeerId
from tests.run_kit import id_of
from tests.unit.state_kit import state_of

ME, OTHER = PeerId("12D3KooWMe"), PeerId("12D3KooWOther")
MODEL = ModelSpec(vocab=32, dim=16, layers=1, heads=2, kv_heads=1, hidden=24, context=16, rope_theta=5000.0)
MANIFEST = Manifest(name="tiny", model=MODEL, rounds=RoundSpec(chunk_bytes=4096))
HISTORY = Digest(bytes(range(32)))


def state(round: int, manifest: Manifest = MANIFEST, history: int = 0) -> CommittedState:
    """A random state, which is different for each round and each `history`."""
    generator = torch.Generator().manual_seed(1000 * history + round)
    layout = layout_of(manifest.model)
    shape = StateShape(layout, manifest.rounds.state_chunk_bytes)
    parameters, momentum = (torch.randn(layout.size, generator=generator) * 0.1 for _ in range(2))
    return state_of(shape, parameters, momentum, round)


def moments(held: CommittedState, steps: int = 7) -> FloatArray:
    vector = torch.rand(moments_size(held.shape.layout.size), generator=torch.Generator().manual_seed(steps))
    vector[0] = steps
    array: FloatArray = vector.numpy()
    return array


def about(held: CommittedState, inner_steps: int = 7, manifest: Manifest = MANIFEST, samples: int = 1000) -> About:
    base = Base(held.current.round, 3 * held.current.round, HISTORY, held.current.root)
    return About.of(manifest, id_of(manifest), base, (OTHER, ME), samples=samples, peer=ME, inner_steps=inner_steps)


def write(folder: Path, round: int, manifest: Manifest = MANIFEST, history: int = 0, samples: int = 1000) -> Path:
    """Write a complete checkpoint of a member that trains; its folder."""
    held = state(round, manifest, history)
    return write_checkpoint(folder, about(held, manifest=manifest, samples=samples), held.current, moments(held))
