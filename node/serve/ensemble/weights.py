"""Scorers of experts, from their parameters."""

from __future__ import annotations

from torch import Tensor

from shoal.node.models.kind import TrainedModel
from shoal.node.models.registry import kind_of
from shoal.node.serve.expert import Expert, Stepwise
from shoal.node.serve.library import library_scorer
from shoal.node.serve.local import LlamaScorer
from shoal.node.serve.models import check_writes
from shoal.node.serve.scorer import Scorer
from shoal.node.serve.served import Choices
from shoal.node.spec.model import AnyModel, HfSpec, ModelSpec
from shoal.node.state.layout import Layout
from shoal.node.trainer.device import choose_device
from shoal.node.trainer.model import Llama, skeleton
from shoal.protocol.errors import LocalError

UNUSED = 0  # a seed of weights that are overwritten


def expert_of(spec: AnyModel, parameters: Tensor, choices: Choices, version: str) -> Expert:
    """A model on the device that was chosen; LocalError if no text can come of it."""
    spec = check_writes(spec)
    if isinstance(spec, HfSpec) and spec.lora is not None:
        raise LocalError("an expert is of adapters, whose base its file does not hold: it cannot be served")
    model = _empty(spec)
    Layout.of(model).load(parameters, model)
    model = model.eval().to(choose_device(choices.device))
    scorer: Scorer
    if isinstance(model, Llama):
        scorer = LlamaScorer(model, vocab=spec.vocab, limit=spec.context, slots=choices.slots, version=version)
    else:
        scorer = library_scorer(model.network, limit=spec.context, slots=choices.slots, version=version)
    return scorer if isinstance(scorer, Expert) else Stepwise(scorer)


def _empty(spec: ModelSpec | HfSpec) -> TrainedModel:
    if isinstance(spec, ModelSpec):
        return skeleton(spec).to_empty(device="cpu")
    return kind_of(spec).build(spec, UNUSED)
