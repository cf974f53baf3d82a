"""The end of a play of replicas: their mean, one file at a time, or a sentence if there is nothing to measure."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from shoal.node.client.up.job import merge
from shoal.node.client.up.measuring import measure
from shoal.node.client.up.plan import to_toml
from shoal.node.manifest.manifest import Manifest, ModelSpec, RoundSpec
from shoal.node.manifest.method import MethodSpec
from shoal.node.training.methods.method import MOMENTUM, PARAMETERS
from shoal.node.training.state.file import load_state, save_state
from shoal.node.training.state.replica_state import ReplicaState
from shoal.protocol.base.errors import LocalError

MANIFEST = Manifest(
    name="tiny",
    model=ModelSpec(dim=16, layers=1, heads=2, kv_heads=1, hidden=32, context=16),
    method=MethodSpec(name="noloco"),
    rounds=RoundSpec(chunk_bytes=4096),
)


def test_the_mean_is_that_of_all_replicas_at_the_newest_round(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.toml"
    manifest.write_text(to_toml(MANIFEST))
    files, held = [], []
    for number in range(3):
        state = ReplicaState(MANIFEST)
        vector = np.random.default_rng(number).standard_normal(state.elements, dtype=np.float32)
        encode = state.encoder(vector, 1)
        state.exchanged(1, encode, [bytes(encode(index)) for index in range(len(state.exchange))], 0)
        state.passed(1 + number)
        held.append(state.committed.current.vectors[PARAMETERS])
        files.append(str(tmp_path / f"{number}.safetensors"))
        save_state(state.committed.current, Path(files[-1]))
    made = merge(str(manifest), str(tmp_path / "merged.safetensors"), *files)
    assert made["replicas"] == 3
    mean = load_state(Path(made["file"]), state.committed.shape).current
    assert mean.round == 3
    assert torch.allclose(mean.vectors[PARAMETERS], torch.stack(held).mean(0), atol=1e-6)
    assert not mean.vectors[MOMENTUM].any()


@pytest.mark.asyncio
async def test_with_nobody_left_there_is_nothing_to_measure(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="no peer is left"):
        await measure(cast(Any, None), cast(Any, None), "cpu", [])
