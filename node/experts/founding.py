"""What a family's founder makes before it begins: its seeds, its partition, and a check that every part has a text.

Seeds are the parameters with which experts begin, from checkpoints of runs of any method. One is of the family's model:
the manifest's `[origin]`. Parts with models of their own begin with seeds of these models, which the manifest names by
their files' hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError
from torch import Tensor

from shoal.node.base.explain import explain
from shoal.node.experts.files import read_parameters
from shoal.node.experts.parts import experts_of, part_manifest
from shoal.node.manifest.experts import SeedSpec
from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.model import AnyModel
from shoal.node.training.checkpoint.lineage import origin_of
from shoal.node.training.checkpoint.read import Checkpoint
from shoal.node.training.data import selection
from shoal.node.training.data.corpus import texts_of_data
from shoal.node.training.data.partition import learn
from shoal.node.training.methods.method import PARAMETERS
from shoal.node.training.models.layout import Layout
from shoal.node.training.models.registry import layout_of
from shoal.node.training.models.tensor_file import write_tensors
from shoal.node.training.state.committed import read_back
from shoal.node.training.state.shape import StateShape
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import Digest


def allot(family: Manifest, seeds: Sequence[Checkpoint]) -> tuple[Checkpoint | None, list[Checkpoint]]:
    """The checkpoint of the family's model, if any, and those of the models of parts; LocalError unless all fit."""
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
                f"the model of {seed.path} is neither the family's nor one of its parts': experts cannot begin with it",
                code="experts-differ",
            )
        if before is not None:
            raise LocalError(
                f"{before.path} and {seed.path} are of one model, and experts begin with one: leave one away",
                code="experts-differ",
            )
    return common, list(own.values())


def seeded(family: Manifest, seed: Checkpoint) -> Manifest:
    """The manifest of a family whose experts begin with a checkpoint of its model."""
    root = _root(family, seed.shape.layout, seed.vectors[PARAMETERS]).hex()
    origin = origin_of(seed.about.model_copy(update={"root": root}))
    more = {"origin": origin.model_dump(), "model": seed.manifest.model.model_dump()}
    return _valid(family.model_dump() | more, seed)


def with_own(family: Manifest, seed: Checkpoint, file: Digest) -> Manifest:
    """The manifest of a family whose parts of the checkpoint's model begin with it; its parameters are in `file`."""
    named = SeedSpec(file=file.hex(), tokens=seed.about.samples)
    experts = experts_of(family).with_seed(seed.manifest.model, named)
    return _valid(family.model_dump() | {"experts": experts.model_dump()}, seed)


def write_seed(path: Path, seed: Checkpoint) -> None:
    """Write the parameters of a checkpoint."""
    write_tensors(path, seed.shape.layout.views(seed.vectors[PARAMETERS]))


def check_seed(path: Path, family: Manifest) -> None:
    """LocalError unless the file holds the parameters that the family's manifest names."""
    assert family.origin is not None
    root = _root(family, layout_of(family.model), read_parameters(path, family.model))
    if root.hex() != family.origin.root:
        raise LocalError(f"{path} is not the family's seed: its state is {root.hex()[:8]}", code="other-model")


def _root(family: Manifest, layout: Layout, theta: Tensor) -> Digest:
    """The root of the parameters alone: the state of the seed's run may hold more."""
    shape = StateShape(layout, family.rounds.state_chunk_bytes, (PARAMETERS,))
    return read_back(shape, 0, {PARAMETERS: theta}).root


def _valid(table: dict[str, object], seed: Checkpoint) -> Manifest:
    try:
        return Manifest.model_validate(table)
    except ValidationError as error:
        raise LocalError(
            f"experts cannot begin with {seed.path}: {explain(error, Manifest)}", code="manifest-wrong"
        ) from error


# -- the partition ------------------------------------------------------------------------------------------


def write_partition(family: Manifest, paths: Sequence[Path], file: Path) -> None:
    """Learn the family's partition, and write its file; LocalError if the data cannot be cut so."""
    clusters = experts_of(family).clusters
    assert clusters is not None
    texts = [text.content for text in texts_of_data(family.data, paths) if family.data.takes(text.name)]
    learn(texts, [len(text) for text in texts], clusters).write(file)


def check_parts(family: Manifest, paths: Sequence[Path], file: Path | None = None) -> None:
    """LocalError unless each part's manifest is valid, and the part has a text; `file` is the partition's."""
    parts = {part.name: part_manifest(family, part).data for part in experts_of(family).parts}
    selection.check_parts(texts_of_data(family.data, paths), parts, file)
