"""What a founder adds to the manifest of a library's model: the tensors, and the first weights.

The initial weights of such a model are random numbers of this machine's torch, which another processor or version need
not produce to the same bits. So they are the run's origin: made once, by its founder, named in the manifest by their
root, and downloaded by all others like those of a run that goes on from a checkpoint. They are of round 0.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import ValidationError
from torch import Tensor

from shoal.node.base.explain import explain
from shoal.node.base.home import EXPORT, Home
from shoal.node.base.room import available_memory, check_disk, check_memory
from shoal.node.manifest.manifest import MAX_MANIFEST, Manifest
from shoal.node.manifest.model import HfSpec
from shoal.node.manifest.requirements import activations
from shoal.node.manifest.tensors import fold
from shoal.node.run.facts import first_base
from shoal.node.training.checkpoint.about import About
from shoal.node.training.checkpoint.lineage import with_origin
from shoal.node.training.checkpoint.read import Checkpoint, load
from shoal.node.training.checkpoint.write import write_checkpoint
from shoal.node.training.methods.registry import method_of
from shoal.node.training.models.hf import (
    CONFIG_SEED,
    PROBE,
    HfModel,
    bytes_beside,
    check_can_be_opened,
    check_can_be_trained,
    check_is_causal,
    check_sizes,
    digest_of,
    network_of,
    untrained,
)
from shoal.node.training.models.hf_kind import HfKind, fresh, without_weights
from shoal.node.training.models.layout import Layout
from shoal.node.training.models.lora import LoraModel
from shoal.node.training.models.registry import kind_of
from shoal.node.training.state.committed import CommittedState
from shoal.node.training.state.shape import shape_of
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import PeerId

ORIGIN = "origin"  # the folder within a run's
MOST_TRIED = 1e11  # operations: a few seconds of one core


def found(
    manifest: Manifest,
    weights: Sequence[Path],
    home: Home,
    me: PeerId,
    check: Callable[[Manifest], None] = lambda whole: None,
    check_room: Callable[[Manifest], None] = lambda whole: None,
) -> tuple[Manifest, Checkpoint]:
    """The whole manifest of a run that begins with fresh weights, and the checkpoint of these, on disk.

    `weights` are folders with frozen weights; `check` looks at the whole manifest before anything is written,
    `check_room` before the model is more than the shapes of its tensors.
    LocalError if the model cannot be built here, and nothing is left of it.
    """
    assert isinstance(manifest.model, HfSpec)
    nothing = without_weights(manifest.model)
    check_room(with_model(manifest, complete(manifest.model, nothing)))
    check_memory(bytes_beside(nothing), "what the config's model holds beside its weights")
    del nothing
    model = fresh(manifest.model, manifest.seed, weights)
    spec = complete(manifest.model, model).model_copy(update={"base": _base(manifest.model, model)})
    whole = with_model(manifest, spec)
    length = _tried(whole)
    check_is_causal(model, length)
    check_can_be_trained(model, length)
    check(whole)
    layout = Layout.of(model)
    first = layout.read(model)
    del model
    _check_can_be_exported(spec, first, home)
    agreed, _ = method_of(whole, layout).begin(first)
    state = CommittedState(shape_of(whole, layout), agreed)
    base = first_base(whole, me, state.current.root)
    about = About.of(whole, base, (), samples=0, peer=me, inner_steps=0)
    made = Checkpoint(home.runs, about, whole, state.current.shape, agreed, None)
    manifest = with_origin(whole, made)
    if len(manifest.canonical()) > MAX_MANIFEST:
        raise LocalError(f"the manifest with all of the model's tensors is larger than {MAX_MANIFEST >> 10} KiB")
    folder = home.make_run_folder(manifest.run_id.hex()) / ORIGIN
    try:
        return manifest, load(write_checkpoint(folder, about, state.current, None))
    except BaseException:
        shutil.rmtree(folder.parent, ignore_errors=True)
        raise


def _tried(manifest: Manifest) -> int:
    """How many tokens the model is tried on before there is a run: as many as it will be trained on.

    By halves fewer, where that takes long or the memory is not here: the founder may train on a GPU, or not at all.
    """
    assert isinstance(manifest.model, HfSpec)
    spec, free = manifest.model, available_memory().free

    def costs(length: int) -> tuple[float, int]:
        """Operations and bytes: of each layer's attention, too, which sees all pairs of tokens."""
        pairs = spec.layers * spec.width * length * length
        shorter = manifest.model_copy(update={"model": spec.model_copy(update={"context": length})})
        return HfKind().flops_per_token(spec) * length + 12 * pairs, activations(shorter, micro_batch=1)

    length = spec.context
    while length > PROBE:
        operations, held = costs(length)
        if operations <= MOST_TRIED and held <= free:
            break
        length = max(PROBE, length // 2)
    return length


def _check_can_be_exported(spec: HfSpec, weights: Tensor, home: Home) -> None:
    """LocalError, with the reason, if nothing that a run makes of the model could ever leave it."""
    check_disk(home.root, weights.nbytes, f"trying to export the model ({spec.parameters:,} parameters)")
    try:
        with tempfile.TemporaryDirectory(dir=home.root, prefix=EXPORT) as folder:
            kind_of(spec).write(spec, weights, Path(folder))
            if spec.lora is None:
                check_can_be_opened(Path(folder))
    except OSError as error:
        raise LocalError(f"cannot write the run's model to {home.root}: {error.strerror or error}") from error


def complete(spec: HfSpec, model: HfModel) -> HfSpec:
    """The table with what the model that was built of it says."""
    vocab = check_sizes(spec, model.network)
    tensors = fold({name: tuple(weight.shape) for name, weight in model.trained()})
    found: dict[str, object] = {"vocab": vocab, "tensors": tensors}
    found["frozen"] = sum(weight.numel() for weight in model.parameters() if not weight.requires_grad)
    return spec.model_copy(update=found)


def _base(spec: HfSpec, model: HfModel) -> str:
    """The hash of what is not trained; empty if there is nothing."""
    if isinstance(model, LoraModel):
        return model.base
    return digest_of(untrained(network_of(spec, CONFIG_SEED))) if untrained(model.network) else ""


def with_model(manifest: Manifest, spec: HfSpec) -> Manifest:
    """The manifest with the whole table, looked through anew: now it shows whether the method fits the model."""
    try:
        return Manifest.model_validate(manifest.model_dump() | {"model": spec.model_dump()})
    except ValidationError as error:
        raise LocalError(f"manifest: {explain(error, Manifest)}") from error
