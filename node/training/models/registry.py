"""The kinds of models by name. Each is imported when it is used, as some need packages that others do without.

Kinds that are not listed here belong to extensions (node/base/extensions.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from shoal.node.base.extensions import extension
from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.model import FROM_SEED, AnyModel, CustomSpec
from shoal.node.manifest.tensors import Shapes, expand
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
    """Where the model's tensors lie in the vector that members exchange; LocalError if the manifest lacks them yet."""
    if not spec.is_complete:
        raise LocalError(
            "the manifest does not name the model's tensors: `shoal run create` fills them in", code="manifest-wrong"
        )
    return Layout(kind_of(spec).shapes(spec))


def build(manifest: Manifest, weights: Sequence[Path] = ()) -> TrainedModel:
    """The run's model on the CPU; LocalError if this machine builds another one than the founder."""
    return kind_of(manifest.model).build(manifest.model, manifest.seed, weights)


def initial(manifest: Manifest) -> Tensor | None:
    """The first weights (d,) if the manifest's seed gives them, to the same bits on every machine; else None."""
    if manifest.model.name not in FROM_SEED:
        return None  # the founder's machine made them: the run's origin
    model = build(manifest)
    return Layout.of(model).read(model)


def _llama() -> Kind:
    from shoal.node.training.models.llama import LlamaKind

    return LlamaKind()


def _hf() -> Kind:
    from shoal.node.training.models.hf_kind import HfKind

    return HfKind()


class CustomKind:
    """A module of the members' scripts: nodes only keep and average its weights."""

    def shapes(self, spec: CustomSpec) -> Shapes:
        """See Kind."""
        return dict(expand(spec.tensors))

    def build(self, spec: CustomSpec, seed: int, weights: Sequence[Path] = ()) -> NoReturn:
        """LocalError, as members exchange no code."""
        raise LocalError(
            "only the script that made this run's model can build it: load its model.safetensors there",
            code="model-unsupported",
        )

    def flops_per_token(self, spec: CustomSpec) -> int:
        """0, as it is unknown."""
        return 0

    def write(self, spec: CustomSpec, parameters: Tensor, folder: Path) -> None:
        """LocalError, as `build`."""
        self.build(spec, 0)


KINDS: Mapping[str, Callable[[], Kind]] = {
    "llama": _llama,
    "hf": _hf,
    "custom": CustomKind,
}
