"""What `save` writes of a worker's own weights, and which nodes have none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from shoal.node.run.agreed_run import AgreedRun
from shoal.node.training.methods.diloco import DiLoCo
from shoal.node.training.methods.late import EagerDiLoCo
from shoal.node.training.methods.method import MOMENTUM, PARAMETERS, Method
from shoal.node.training.state.file import load_state
from shoal.protocol.base.errors import LocalError
from tests.unit.checkpoint_kit import state

HELD = state(3)
WEIGHTS = np.linspace(0, 1, HELD.shape.layout.size, dtype=np.float32)


class Training(SimpleNamespace):
    async def weights(self) -> Any:
        return WEIGHTS


def run(method: Method, *, trains: bool = True, is_finished: bool = True) -> AgreedRun:
    outer = SimpleNamespace(method=method, committed=HELD)
    own = SimpleNamespace(training=Training() if trains else None, outer=outer, is_finished=is_finished)
    return cast(AgreedRun, own)


@pytest.mark.asyncio
async def test_they_are_weights_alone_of_the_state_s_round(tmp_path: Path) -> None:
    path = tmp_path / "own.safetensors"
    written = await AgreedRun.save(run(EagerDiLoCo(5, 0.7, 0.9)), path, own=True)
    held = load_state(path, HELD.shape).current
    assert torch.equal(held.vectors[PARAMETERS], torch.from_numpy(WEIGHTS))
    assert not held.vectors[MOMENTUM].any()
    assert (held.round, held.root) == (3, written.root)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("method", "more", "words"),
    [
        (DiLoCo(5, 0.7, 0.9), {}, "no worker has weights"),
        (EagerDiLoCo(5, 0.7, 0.9), {"trains": False}, "no worker has weights"),
        (EagerDiLoCo(5, 0.7, 0.9), {"is_finished": False}, "when the run's last round is over"),
    ],
)
async def test_where_there_are_none_that_is_said(
    tmp_path: Path, method: Method, more: dict[str, bool], words: str
) -> None:
    with pytest.raises(LocalError, match=words):
        await AgreedRun.save(run(method, **more), tmp_path / "own.safetensors", own=True)
    assert not list(tmp_path.iterdir())
