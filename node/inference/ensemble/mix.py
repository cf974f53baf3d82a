"""The ways to make one model of experts: mix their predictions, or merge their parameters into one model beforehand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from shoal.node.base.options import MAX_SEED
from shoal.node.experts.files import read_parameters
from shoal.node.experts.merging import average, pcb
from shoal.node.inference.ensemble.table import Entry
from shoal.node.manifest.model import AnyModel
from shoal.node.training.checkpoint.about import MODEL
from shoal.node.training.models.layout import Layout
from shoal.node.training.models.registry import kind_of
from shoal.protocol.base.errors import LocalError

AVERAGE, PCB = "average", "pcb"


@dataclass(frozen=True, slots=True)
class Mix:
    """`full` and `top-k` mix the experts' predictions; `average` and `pcb` merge their parameters beforehand."""

    name: str = "full"
    k: int | None = None  # experts that write each text; None: all

    @property
    def is_merge(self) -> bool:
        """Whether the experts are merged into one model."""
        return self.name in (AVERAGE, PCB)


def parse_mix(text: str) -> Mix:
    """The mix that --mix names; empty means `full`. LocalError if it is unknown."""
    if found := re.fullmatch(r"top-([1-9]\d{0,3})", text):
        return Mix(text, int(found[1]))
    if text in ("", "full", AVERAGE, PCB):
        return Mix(text or "full")
    raise LocalError(f"--mix {text} is unknown: say full, top-1, top-2 and so on, {AVERAGE} or {PCB}")


def one_model(entries: Sequence[Entry]) -> AnyModel:
    """The model of all experts, with the shortest of their contexts; LocalError if they differ in anything else."""
    first = entries[0]
    context = min(each.model.context for each in entries)
    models = [each.model.model_copy(update={"context": context}) for each in entries]
    for each, model in zip(entries, models, strict=True):
        if model != models[0]:
            raise LocalError(
                f"the experts {first.name} and {each.name} have different models, so they cannot be merged: "
                f"mix them with --mix full or top-2"
            )
    return models[0]


def merge(thetas: Sequence[Tensor], log_prior: Tensor, mix: Mix, base: Tensor | None) -> Tensor:
    """The merged parameters, (d,); `base` are the parameters that all experts began with, which PCB needs."""
    if mix.name != PCB:
        return average(thetas, log_prior.exp().tolist())
    assert base is not None
    return pcb(base, thetas)


def read_base(text: str, model: AnyModel) -> Tensor:
    """The parameters that --base names by a safetensors file, a checkpoint's folder or a manifest's seed.

    LocalError if they are not of the model.
    """
    if not text:
        raise LocalError(
            "--mix pcb needs what the experts have begun with: name a safetensors file, a checkpoint's folder or the "
            "seed of the family's manifest with --base"
        )
    if text.isdecimal():
        if int(text) > MAX_SEED:
            raise LocalError(f"--base {text} is no seed: the largest is {MAX_SEED}")
        built = kind_of(model).build(model, int(text))
        return Layout.of(built).read(built)
    path = Path(text)
    return read_parameters(path / MODEL if path.is_dir() else path, model)
