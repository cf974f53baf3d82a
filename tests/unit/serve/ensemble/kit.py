"""Experts of tests: some that say one thing whatever they read, and folders of tiny ones as node/experts/ has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import log
from pathlib import Path

import numpy as np
import torch
from blake3 import blake3
from safetensors.torch import save_file
from torch import Tensor

from shoal.node.inference.ensemble.ensemble import Ensemble
from shoal.node.inference.ensemble.panel import Member, Panel
from shoal.node.inference.local import LlamaScorer
from shoal.node.inference.scorer import Piece, Predictions, Scorer
from shoal.node.manifest.model import ModelSpec
from shoal.node.training.models.decoder import build
from shoal.node.training.models.layout import Layout

VOCAB = 256
SMALL = ModelSpec(vocab=VOCAB, dim=16, layers=1, heads=2, kv_heads=1, hidden=16, context=64)
OTHER = SMALL.model_copy(update={"dim": 32, "layers": 2, "context": 48})


class Unigram(Scorer):
    """Says always the same of what comes next: `chances` of some letters, and nearly none of anything else."""

    def __init__(self, slots: int = 4, limit: int = 1000, **chances: float) -> None:
        self.vocab, self.limit, self.slots, self.version = VOCAB, limit, slots, "u1"
        self.row = np.full(VOCAB, -30.0, np.float32)
        for letter, chance in chances.items():
            self.row[ord(letter)] = log(chance)
        self.held: dict[int, list[int]] = {}
        self.calls: list[list[Piece]] = []
        self.fails: Callable[[], Exception | None] = lambda: None

    def extend(self, pieces: Sequence[Piece], within: bool = False) -> Predictions:
        self.calls.append(list(pieces))
        if failure := self.fails():
            raise failure
        for piece in pieces:
            self.held.setdefault(piece.slot, []).extend(piece.tokens)
        worth = [float(self.row[list(piece.tokens[1:])].sum(dtype=np.float64)) for piece in pieces]
        return Predictions(np.tile(self.row, (len(pieces), 1)), np.array(worth))

    def end(self, slot: int) -> None:
        self.held.pop(slot, None)


def panel(experts: Mapping[str, Scorer], prior: Sequence[float] = (), k: int | None = None) -> Panel:
    given = torch.tensor(prior or [1 / len(experts)] * len(experts), dtype=torch.float64)
    return Panel(tuple(Member(name, name, each) for name, each in experts.items()), given.log(), k)


def ensemble(
    experts: Mapping[str, Scorer], prior: Sequence[float] = (), k: int | None = None, at_once: int = 1
) -> Ensemble:
    limit = min(each.limit for each in experts.values())
    mix = "full" if k is None else f"top-{k}"
    return Ensemble(panel(experts, prior, k), limit=limit, slots=4, mix=mix, at_once=at_once)


def tiny_expert(seed: int, spec: ModelSpec = SMALL, slots: int = 4) -> LlamaScorer:
    return LlamaScorer(build(spec, seed), vocab=spec.vocab, limit=spec.context, slots=slots, version=f"v{seed}")


def theta(seed: int, spec: ModelSpec = SMALL) -> Tensor:
    model = build(spec, seed)
    return Layout.of(model).read(model)


def write_file(path: Path, vector: Tensor, spec: ModelSpec = SMALL) -> str:
    """Writes an expert's parameters; gives their hash."""
    views = Layout.of(build(spec, 0)).views(vector)
    save_file({name: view.clone() for name, view in views.items()}, path)
    return blake3(path.read_bytes()).hexdigest()


def write_experts(
    folder: Path, experts: Mapping[str, tuple[int, ModelSpec]], priors: Mapping[str, float] | None = None
) -> Path:
    """A folder of experts: seed and model of each by name. What is not read here is there as well, as the writer's."""
    folder.mkdir(exist_ok=True)
    rows = [
        {
            "name": name,
            "file": f"{name}.safetensors",
            "blake3": write_file(folder / f"{name}.safetensors", theta(seed, spec), spec),
            "bytes": 1,
            "round": 3,
            "steps": 30,
            "finished": True,
            "card": "00",
            "prior": (priors or {}).get(name, 1 / len(experts)),
            "only": [f"{name}/*"],
            "model": spec.model_dump(mode="json"),
        }
        for name, (seed, spec) in experts.items()
    ]
    table = {"format": 1, "family": "00" * 32, "name": "fam", "author": "x", "complete": True, "experts": rows}
    (folder / "ensemble.json").write_text(json.dumps(table))
    return folder
