"""Founding a run of a library's model: adds its tensors to the manifest, and creates its first weights.

The initial weights of such a model are random numbers from this machine's torch, which another processor or version may
not reproduce to the bit. So they are the run's origin, in round 0: the founder creates them once, the manifest names
their root, and all others download them as if the run went on from a checkpoint.
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
from shoal.node.base.refusals import CODES
from shoal.node.base.room import available_memory, check_disk, check_memory
from shoal.node.manifest.manifest import MAX_MANIFEST, Introduction, Manifest, Sign
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
MOST_TRIED = 1e11  # operations of the trial: a few seconds of one core


def create_first_weights(
    manifest: Manifest,
    weights: Sequence[Path],
    home: Home,
    sign: Sign,
    me: PeerId,
    check: Callable[[Manifest], None] = lambda whole: None,
    check_room: Callable[[Manifest], None] = lambda whole: None,
) -> tuple[Introduction, Checkpoint]:
    """A run that begins with fresh weights, to be founded, and the checkpoint of these on disk.

    `weights` are folders with frozen weights. `check` is called with the complete manifest before anything is written,
    `check_room` before weights are allocated. LocalError if the model cannot be built here; then nothing is left.
    """
    assert isinstance(manifest.model, HfSpec)
    shapes_only = without_weights(manifest.model)
    check_room(with_model(manifest, complete_spec(manifest.model, shapes_only)))
    check_memory(bytes_beside(shapes_only), "what the config's model holds beside its weights")
    del shapes_only
    model = fresh(manifest.model, manifest.seed, weights)
    spec = complete_spec(manifest.model, model).model_copy(update={"base": _base(manifest.model, model)})
    whole = with_model(manifest, spec)
    length = _trial_length(whole)
    check_is_causal(model, length)
    check_can_be_trained(model, length)
    check(whole)
    layout = Layout.of(model)
    first = layout.read(model)
    del model
    _check_can_be_exported(spec, first, home)
    agreed, _ = method_of(whole, layout).begin(first)
    state = CommittedState(shape_of(whole, layout), agreed)
    base = first_base(whole, state.current.root)
    about = About.of(whole, whole.digest, base, (), samples=0, peer=me, inner_steps=0)
    made = Checkpoint(home.runs, about, whole, state.current.shape, agreed, None)
    manifest = with_origin(whole, made)
    if len(manifest.canonical()) > MAX_MANIFEST:
        raise LocalError(
            f"the manifest with all of the model's tensors is larger than {MAX_MANIFEST >> 10} KiB",
            code="manifest-wrong",
        )
    found = sign(manifest)
    folder = home.make_run_folder(found.run.hex()) / ORIGIN
    try:
        return found, load(write_checkpoint(folder, about, state.current, None))
    except BaseException:
        shutil.rmtree(folder.parent, ignore_errors=True)
        raise


def _trial_length(manifest: Manifest) -> int:
    """The number of tokens on which the model is tried before the run is founded: its context.

    It is halved while the trial would take long or not fit into memory: the founder may train on a GPU, or not at all.
    """
    assert isinstance(manifest.model, HfSpec)
    spec, free = manifest.model, available_memory().free

    def costs(length: int) -> tuple[float, int]:
        """Operations and bytes, with each layer's attention over all pairs of tokens."""
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
    """LocalError, with the reason, if the run's model could not be exported."""
    check_disk(home.root, weights.nbytes, f"trying to export the model ({spec.parameters:,} parameters)")
    try:
        with tempfile.TemporaryDirectory(dir=home.root, prefix=EXPORT) as folder:
            kind_of(spec).write(spec, weights, Path(folder))
            if spec.lora is None:
                check_can_be_opened(Path(folder))
    except OSError as error:
        raise LocalError(
            f"cannot write the run's model to {home.root}: {error.strerror or error}",
            code=CODES.get(error.errno or 0, "unwritable"),
        ) from error


def complete_spec(spec: HfSpec, model: HfModel) -> HfSpec:
    """The spec with vocabulary, tensors and the number of frozen parameters of the model that was built from it."""
    vocab = check_sizes(spec, model.network)
    tensors = fold({name: tuple(weight.shape) for name, weight in model.trained()})
    found: dict[str, object] = {"vocab": vocab, "tensors": tensors}
    found["frozen"] = sum(weight.numel() for weight in model.parameters() if not weight.requires_grad)
    return spec.model_copy(update=found)


def _base(spec: HfSpec, model: HfModel) -> str:
    """The hash of the frozen weights; empty if there are none."""
    if isinstance(model, LoraModel):
        return model.base
    return digest_of(untrained(network_of(spec, CONFIG_SEED))) if untrained(model.network) else ""


def with_model(manifest: Manifest, spec: HfSpec) -> Manifest:
    """The manifest with the complete model, validated again: LocalError if the method does not fit the model."""
    try:
        return Manifest.model_validate(manifest.model_dump() | {"model": spec.model_dump()})
    except ValidationError as error:
        raise LocalError(f"manifest: {explain(error, Manifest)}", code="manifest-wrong") from error
