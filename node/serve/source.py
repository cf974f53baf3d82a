"""From a folder to a model that can be asked: a run's checkpoint, experts, or a folder that transformers opens."""

from __future__ import annotations

from pathlib import Path

import torch

from shoal.node.checkpoint.about import ABOUT
from shoal.node.checkpoint.read import Checkpoint, load
from shoal.node.checkpoint.scan import PREFIX, find
from shoal.node.device import choose_device
from shoal.node.layout import Layout
from shoal.node.manifest import Manifest
from shoal.node.methods.method import PARAMETERS
from shoal.node.model import Llama
from shoal.node.model_spec import HfSpec, ModelSpec
from shoal.node.models.kind import TrainedModel
from shoal.node.models.registry import build
from shoal.node.options import default_threads
from shoal.node.serve.chat import PlainChat
from shoal.node.serve.ensemble.source import open_ensemble
from shoal.node.serve.ensemble.table import ENSEMBLE
from shoal.node.serve.folder import open_folder
from shoal.node.serve.library import library_scorer
from shoal.node.serve.local import LlamaScorer
from shoal.node.serve.run_tokens import run_codec
from shoal.node.serve.scorer import Scorer
from shoal.node.serve.served import Choices, Served
from shoal.protocol.errors import LocalError

CONFIG, ADAPTERS = "config.json", "adapter_config.json"


def open_source(path: Path, choices: Choices) -> Served:
    """The model in the folder `path`; LocalError, which says what is wrong, if there is none that can be served."""
    torch.set_num_threads(choices.threads or default_threads())
    if not path.is_dir():
        raise LocalError(f"{path} is not a folder: name a checkpoint's, or a model's that transformers opens")
    if (path / ENSEMBLE).exists():
        return open_ensemble(path, choices)
    if choices.mix or choices.prior or choices.base:
        raise LocalError(f"--mix, --prior and --base are for folders of experts, and {path} has no {ENSEMBLE}")
    if (path / ABOUT).exists() or path.name.startswith(PREFIX):
        return of_checkpoint(load(path), choices)
    if (path / ADAPTERS).exists():
        raise LocalError(f"{path} holds adapters, no model: merge them with their base (peft's merge_and_unload)")
    if (path / CONFIG).exists():
        return open_folder(path, choices)
    held = [found for found in find(path) if not found.problem]
    if held:
        raise LocalError(f"{path} holds {len(held)} checkpoints: name one of them, such as {held[-1].path}")
    raise LocalError(f"{path} is neither a checkpoint ({ABOUT}) nor a model's folder ({CONFIG})")


def of_checkpoint(checkpoint: Checkpoint, choices: Choices) -> Served:
    """The model of a run as a checkpoint has it."""
    manifest, about = checkpoint.manifest, checkpoint.about
    scorer = scorer_of(manifest, checkpoint.vectors[PARAMETERS], choices, about.root[:16])
    return Served(
        name=manifest.name,
        scorer=scorer,
        codec=run_codec(manifest, checkpoint.path, choices.tokenizer),
        chat=PlainChat(),
        created=int(about.saved_at),
        sentence=f"run {about.name} ({about.run[:8]}), round {about.round}",
    )


def scorer_of(manifest: Manifest, parameters: torch.Tensor, choices: Choices, version: str) -> Scorer:
    """A run's model with these parameters, on the device that was chosen; LocalError if no text can come of it."""
    spec = manifest.model
    if not isinstance(spec, ModelSpec | HfSpec):
        raise LocalError("the run's model is a script's own, and only that script can build it and ask it")
    if isinstance(spec, HfSpec) and spec.lora is not None:
        raise LocalError(
            "the run trains adapters on a base that its checkpoints do not hold: export them (`shoal ckpt export`), "
            "merge them with their base (peft's merge_and_unload), and serve that folder"
        )
    model = with_parameters(manifest, parameters).to(choose_device(choices.device))
    if isinstance(model, Llama):
        return LlamaScorer(model, vocab=spec.vocab, limit=spec.context, slots=choices.slots, version=version)
    return library_scorer(model.network, limit=spec.context, slots=choices.slots, version=version)


def with_parameters(manifest: Manifest, parameters: torch.Tensor) -> TrainedModel:
    """The model on the CPU, ready to be asked."""
    model = build(manifest)
    Layout.of(model).load(parameters, model)
    return model.eval()
