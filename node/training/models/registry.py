"""The kinds of models by name: a kind is imported when it is asked for, as some need what others do without.

Those that are not listed here are an extension's (node/base/extensions.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.node.base.extensions import extension
from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.model import FROM_SEED, AnyModel
from shoal.node.training.models.kind import Kind, TrainedModel
from shoal.node.training.models.layout import Layout
from shoal.protocol.base.errors import LocalError

if TYPE_CHECKING:
    from torch import Tensor


def kind_of(spec: AnyModel) -> Kind:
    """The kind of a run's model."""
    make = KINDS.get(spec.name) or extension(spec.name).kind
    kind: Kind = make()
    return kind


def layout_of(spec: AnyModel) -> Layout:
    """Where its tensors lie in the vector that members exchange; LocalError if the manifest does not say yet."""
    if not spec.is_complete:
        raise LocalError("the manifest does not name the model's tensors: `shoal run create` fills them in")
    return Layout(kind_of(spec).shapes(spec))


def build(manifest: Manifest, weights: Sequence[Path] = ()) -> TrainedModel:
    """The run's model on the CPU; LocalError if this machine makes another one of it than the run's founder did."""
    return kind_of(manifest.model).build(manifest.model, manifest.seed, weights)


def initial(manifest: Manifest) -> Tensor | None:
    """The weights that the manifest's seed gives, to the same bits on every machine; None if it gives no such thing."""
    if manifest.model.name not in FROM_SEED:
        return None  # they are those of the founder's machine: the run's origin
    model = build(manifest)
    return Layout.of(model).read(model)


def _llama() -> Kind:
    from shoal.node.training.models.llama import LlamaKind

    return LlamaKind()


def _hf() -> Kind:
    from shoal.node.training.models.hf_kind import HfKind

    return HfKind()


def _custom() -> Kind:
    from shoal.node.training.models.custom import CustomKind

    return CustomKind()


KINDS: Mapping[str, Callable[[], Kind]] = {
    "llama": _llama,
    "hf": _hf,
    "custom": _custom,
}
