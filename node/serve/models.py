"""Models that are only asked, never trained: from a specification and parameters to a scorer."""

from __future__ import annotations

from torch import Tensor

from shoal.node.models.kind import TrainedModel
from shoal.node.models.registry import kind_of
from shoal.node.serve.local import LlamaScorer
from shoal.node.serve.scorer import Scorer
from shoal.node.serve.served import Choices
from shoal.node.spec.flow import PictureSpec
from shoal.node.spec.model import AnyModel, HfSpec, ModelSpec
from shoal.node.state.layout import Layout
from shoal.node.trainer.device import choose_device
from shoal.node.trainer.model import Llama, skeleton
from shoal.protocol.errors import LocalError

UNUSED = 0  # a seed of weights that are overwritten


def check_writes(spec: AnyModel) -> ModelSpec | HfSpec:
    """The same; LocalError if it is of no kind that writes text."""
    if isinstance(spec, PictureSpec):
        raise LocalError(
            "the model paints: name the folder that `shoal experts fetch FAMILY DIR` writes, not the family"
        )
    if not isinstance(spec, ModelSpec | HfSpec):
        raise LocalError("the model is a script's own, and only that script can build it and ask it")
    return spec


def check_spec(spec: AnyModel) -> ModelSpec | HfSpec:
    """The same; LocalError if no text can come of a run's model."""
    spec = check_writes(spec)
    if isinstance(spec, HfSpec) and spec.lora is not None:
        raise LocalError(
            "the run trains adapters on a base that its states do not hold: export them (`shoal ckpt export`), "
            "merge them with their base (peft's merge_and_unload), and serve that folder"
        )
    return spec


def model_of(spec: ModelSpec | HfSpec, parameters: Tensor, device: str) -> TrainedModel:
    """The model of flat parameters (d,), on a device. On the CPU our own decoder has its weights in `parameters`."""
    if isinstance(spec, ModelSpec):
        model: TrainedModel = skeleton(spec)
        model.load_state_dict(Layout.of(model).views(parameters), assign=True)
    else:
        model = kind_of(spec).build(spec, UNUSED)
        Layout.of(model).load(parameters, model)
    return model.eval().to(choose_device(device))


def scorer_of(spec: AnyModel, parameters: Tensor, choices: Choices, version: str) -> Scorer:
    """A run's model with these parameters, on the device that was chosen; LocalError if no text can come of it."""
    spec = check_spec(spec)
    model = model_of(spec, parameters, choices.device)
    if isinstance(model, Llama):
        return LlamaScorer(model, vocab=spec.vocab, limit=spec.context, slots=choices.slots, version=version)
    from shoal.node.serve.library import library_scorer  # which brings transformers

    return library_scorer(model.network, limit=spec.context, slots=choices.slots, version=version)


def renewed(scorer: Scorer, spec: AnyModel, parameters: Tensor, choices: Choices, version: str) -> Scorer:
    """A scorer like `scorer`, one of `scorer_of`, with other weights. The two may be asked for different slots.

    What was found out about the model is not asked again, and our own decoder's cache has room for both.
    """
    model = model_of(check_spec(spec), parameters, choices.device)
    if isinstance(model, Llama):
        assert isinstance(scorer, LlamaScorer)
        return scorer.renewed(model, version)
    from shoal.node.serve.library import renewed_library_scorer

    return renewed_library_scorer(scorer, model.network, version)
