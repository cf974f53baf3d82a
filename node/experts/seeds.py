"""The seeds with which a family's experts begin: parameters of checkpoints, of whatever methods.

One is of the family's model: its manifest's `[origin]`. Parts with models of their own begin with seeds of these,
which the manifest names by their files' hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError
from torch import Tensor

from shoal.node.base.explain import explain
from shoal.node.experts.files import read_parameters
from shoal.node.experts.parts import experts_of
from shoal.node.manifest.experts import SeedSpec
from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.model import AnyModel
from shoal.node.training.checkpoint.lineage import origin_of
from shoal.node.training.checkpoint.read import Checkpoint
from shoal.node.training.methods.method import PARAMETERS
from shoal.node.training.models.layout import Layout
from shoal.node.training.models.registry import layout_of
from shoal.node.training.models.tensor_file import write_tensors
from shoal.node.training.state.committed import read_back
from shoal.node.training.state.shape import StateShape
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import Digest


def allot(family: Manifest, seeds: Sequence[Checkpoint]) -> tuple[Checkpoint | None, list[Checkpoint]]:
    """Which of these checkpoints is of the family's model, and those of models of parts; LocalError unless all fit."""
    models = [part.model for part in experts_of(family).parts if part.model is not None]
    common: Checkpoint | None = None
    own: dict[AnyModel, Checkpoint] = {}
    for seed in seeds:
        model = seed.manifest.model
        if model.completes(family.model) or model == family.model:
            before, common = common, seed
        elif model in models:
            before, own[model] = own.get(model), seed
        else:
            raise LocalError(
                f"the model of {seed.path} is neither the family's nor one of its parts': experts cannot begin with it"
            )
        if before is not None:
            raise LocalError(
                f"{before.path} and {seed.path} are of one model, and experts begin with one: leave one away"
            )
    return common, list(own.values())


def seeded(family: Manifest, seed: Checkpoint) -> Manifest:
    """The manifest of a family whose experts begin with a checkpoint of its model."""
    root = _root(family, seed.shape.layout, seed.vectors[PARAMETERS]).hex()
    origin = origin_of(seed.about.model_copy(update={"root": root}))
    more = {"origin": origin.model_dump(), "model": seed.manifest.model.model_dump()}
    return _valid(family.model_dump() | more, seed)


def with_own(family: Manifest, seed: Checkpoint, file: Digest) -> Manifest:
    """The same where parts of the checkpoint's model begin with it; its parameters are in `file`."""
    named = SeedSpec(file=file.hex(), tokens=seed.about.samples)
    experts = experts_of(family).with_seed(seed.manifest.model, named)
    return _valid(family.model_dump() | {"experts": experts.model_dump()}, seed)


def write_seed(path: Path, seed: Checkpoint) -> None:
    """The parameters of a checkpoint."""
    write_tensors(path, seed.shape.layout.views(seed.vectors[PARAMETERS]))


def check_seed(path: Path, family: Manifest) -> None:
    """LocalError unless the file holds the parameters that the family's manifest names."""
    assert family.origin is not None
    root = _root(family, layout_of(family.model), read_parameters(path, family.model))
    if root.hex() != family.origin.root:
        raise LocalError(f"{path} is not the family's seed: its state is {root.hex()[:8]}")


def _root(family: Manifest, layout: Layout, theta: Tensor) -> Digest:
    """Of the parameters alone: the seed's method may have agreed on more."""
    shape = StateShape(layout, family.rounds.state_chunk_bytes, (PARAMETERS,))
    return read_back(shape, 0, {PARAMETERS: theta}).root


def _valid(table: dict[str, object], seed: Checkpoint) -> Manifest:
    try:
        return Manifest.model_validate(table)
    except ValidationError as error:
        raise LocalError(f"experts cannot begin with {seed.path}: {explain(error, Manifest)}") from error
