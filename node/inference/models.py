"""The model of a run or an expert: a scorer over its parameters, and the vocabulary of its tokens."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from shoal.node.base.home import find_home
from shoal.node.base.options import default_threads
from shoal.node.inference.library import library_scorer, renewed_library_scorer
from shoal.node.inference.local import LlamaScorer
from shoal.node.inference.scorer import Scorer
from shoal.node.inference.served import ServeOptions
from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.model import AnyModel, HfSpec, ModelSpec, PictureSpec
from shoal.node.training.data.vocabulary import ByteVocabulary, TokenizerVocabulary, Vocabulary, read_tokenizer
from shoal.node.training.models.decoder import Llama, skeleton
from shoal.node.training.models.kind import TrainedModel
from shoal.node.training.models.layout import Layout
from shoal.node.training.models.registry import kind_of
from shoal.node.training.trainer.device import choose_device
from shoal.protocol.base.errors import LocalError

UNUSED_SEED = 0  # of initial weights that are overwritten


# -- scorers ------------------------------------------------------------------------------------------------


def check_writes(spec: AnyModel) -> ModelSpec | HfSpec:
    """Return `spec`; LocalError if its kind of model writes no text."""
    if isinstance(spec, PictureSpec):
        raise LocalError(
            "the model paints: name the folder that `shoal experts fetch FAMILY DIR` writes, not the family",
            code="model-unsupported",
        )
    if not isinstance(spec, ModelSpec | HfSpec):
        raise LocalError(
            "the model is a script's own, and only that script can build it and ask it", code="model-unsupported"
        )
    return spec


def check_spec(spec: AnyModel) -> ModelSpec | HfSpec:
    """Return the spec of a run's model; LocalError if the model cannot write text."""
    spec = check_writes(spec)
    if isinstance(spec, HfSpec) and spec.lora is not None:
        raise LocalError(
            "the run trains adapters on a base that its states do not hold: export them (`shoal ckpt export`), "
            "merge them with their base (peft's merge_and_unload), and serve that folder",
            code="adapters-alone",
        )
    return spec


def scorer_of(spec: AnyModel, parameters: Tensor, options: ServeOptions, version: str) -> Scorer:
    """A scorer of a run's model with these parameters, (d,), on the chosen device; LocalError if it writes no text."""
    return _scorer(check_spec(spec), parameters, options, version)


def expert_of(spec: AnyModel, parameters: Tensor, options: ServeOptions, version: str) -> Scorer:
    """A scorer of an expert's model, on the chosen device; LocalError if it writes no text."""
    spec = check_writes(spec)
    if isinstance(spec, HfSpec) and spec.lora is not None:
        raise LocalError(
            "an expert is of adapters, whose base its file does not hold: it cannot be served", code="adapters-alone"
        )
    return _scorer(spec, parameters, options, version)


def renewed(scorer: Scorer, spec: AnyModel, parameters: Tensor, options: ServeOptions, version: str) -> Scorer:
    """A scorer like `scorer`, which came from `scorer_of`, with other weights. Each slot must be used with one of them.

    The model is not tested again, and Shoal's own decoder shares one cache between both.
    """
    model = _model(check_spec(spec), parameters, options.device)
    if isinstance(model, Llama):
        assert isinstance(scorer, LlamaScorer)
        return scorer.renewed(model, version)
    return renewed_library_scorer(scorer, model.network, version)


def _scorer(spec: ModelSpec | HfSpec, parameters: Tensor, options: ServeOptions, version: str) -> Scorer:
    model = _model(spec, parameters, options.device)
    if isinstance(model, Llama):
        return LlamaScorer(model, vocab=spec.vocab, limit=spec.context, slots=options.slots, version=version)
    return library_scorer(model.network, limit=spec.context, slots=options.slots, version=version)


def _model(spec: ModelSpec | HfSpec, parameters: Tensor, device: str) -> TrainedModel:
    """The model with flat parameters (d,), on a device. On the CPU Shoal's own decoder does not copy them."""
    if isinstance(spec, ModelSpec):
        model: TrainedModel = skeleton(spec)
        model.load_state_dict(Layout.of(model).views(parameters), assign=True)
    else:
        model = kind_of(spec).build(spec, UNUSED_SEED)
        Layout.of(model).load(parameters, model)
    return model.eval().to(choose_device(device))


# -- tokens -------------------------------------------------------------------------------------------------


def run_vocabulary(manifest: Manifest, place: Path, chosen: str) -> Vocabulary:
    """A run's vocabulary: bytes, or the tokenizer that its manifest names.

    `chosen` is a tokenizer's file that the user named, or empty: then the tokenizer is searched for in the folders
    above `place` and in the node's home. LocalError if it is not found.
    """
    data, vocab = manifest.data, manifest.model.vocab
    if not data.tokenizer:
        if chosen:
            raise LocalError("the run's tokens are bytes: serve it without --tokenizer", code="other-tokenizer")
        return ByteVocabulary()
    if chosen:
        content = read_tokenizer(Path(chosen))
    else:
        from shoal.node.training.checkpoint.tokenizer import find_tokenizer

        content = find_tokenizer(data, [*place.resolve().parents, find_home().root])
    what = chosen or data.tokenizer
    vocabulary = TokenizerVocabulary(content, frozenset(), special=False, what=what)
    if vocabulary.size > vocab:
        raise LocalError(
            f"the tokenizer {data.tokenizer} has {vocabulary.size:,} tokens, and the run's model {vocab:,}",
            code="other-tokenizer",
        )
    vocabulary.ends = ends_of(vocabulary, data.end_of_text, what)
    return vocabulary


def ends_of(vocabulary: TokenizerVocabulary, end_of_text: str, what: str) -> frozenset[int]:
    """The token that ends a text, or none; LocalError if the tokenizer, called `what`, does not know it."""
    if not end_of_text:
        return frozenset()
    end = vocabulary.tokens.token_to_id(end_of_text)
    if end is None:
        raise LocalError(f"the run's end_of_text {end_of_text!r} is no token of {what}", code="other-tokenizer")
    return frozenset({end})


# -- the CPU's threads --------------------------------------------------------------------------------------


def use_threads(threads: int) -> None:
    """Set how many threads torch computes with; 0: as many as a worker uses."""
    torch.set_num_threads(threads or default_threads())


def models_at_once() -> int:
    """How many models this machine can compute at the same time, each with torch's number of threads."""
    return max(1, (os.cpu_count() or 1) // torch.get_num_threads())
