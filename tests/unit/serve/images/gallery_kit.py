"""Folders of experts on pictures, as `shoal experts fetch` leaves them, with random numbers; and a brush to be held."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from blake3 import blake3

from shoal.node.diffusion.engine import SamplingBatch
from shoal.node.manifest.model import FlowSpec, RouterSpec
from shoal.node.training.models.registry import layout_of
from shoal.node.training.models.tensor_file import write_tensors

FLOW = FlowSpec(name="flow", side=4, classes=10, width=16, layers=1, hidden=24)
ROUTER = RouterSpec(name="router", side=4, classes=10, width=16, layers=1, hidden=24, experts=3)


class Brush:
    """Holds each step until it is allowed, and notes how many pictures are in it. Steps are counted from 1."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes = list[int]()
        self._allowed, self._changed = 0, threading.Condition()
        step = SamplingBatch.step

        def held_step(canvas: SamplingBatch) -> None:
            with self._changed:
                self.sizes.append(canvas.count)
                number = len(self.sizes)
                self._changed.notify_all()
                assert self._changed.wait_for(lambda: self._allowed >= number, 60)
            step(canvas)

        monkeypatch.setattr(SamplingBatch, "step", held_step)

    def allow(self, steps: int) -> None:
        """Allow `steps` steps in all."""
        with self._changed:
            self._allowed = steps
            self._changed.notify_all()

    async def at(self, number: int) -> None:
        """Wait until that step is held."""

        def wait() -> bool:
            with self._changed:
                return self._changed.wait_for(lambda: len(self.sizes) >= number, 60)

        assert await asyncio.to_thread(wait)


def write_gallery(
    folder: Path, clusters: tuple[int, ...] = (0, 1, 2), *, has_router: bool = True, flow: FlowSpec = FLOW
) -> Path:
    """Experts of these clusters, and a router of three."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [_row(folder, f"cluster-{each}", flow) for each in clusters]
    rows += [_row(folder, "router", ROUTER)] if has_router else []
    write_table(folder, rows)
    return folder


def write_table(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "ensemble.json").write_text(json.dumps({"format": 1, "name": "digits", "experts": rows}))


def _row(folder: Path, name: str, model: FlowSpec | RouterSpec) -> dict[str, Any]:
    layout = layout_of(model)
    weights = torch.randn(layout.size, generator=torch.Generator().manual_seed(len(name) + ord(name[-1]))) * 0.2
    path = folder / f"{name}.safetensors"
    write_tensors(path, layout.views(weights))
    digest = blake3(path.read_bytes()).hexdigest()
    return {"name": name, "file": path.name, "blake3": digest, "prior": 0.25, "model": model.model_dump(mode="json")}
