"""To a model that can be asked, from a folder with a run's checkpoint, experts or what transformers opens, or a name.

What is a folder is one; what is not, and looks like no path, is the name of a run that the node of this machine is in.
"""

from __future__ import annotations

import os
from pathlib import Path

from shoal.node.checkpoint.about import ABOUT
from shoal.node.checkpoint.read import Checkpoint, load
from shoal.node.checkpoint.scan import PREFIX, find
from shoal.node.methods.method import PARAMETERS
from shoal.node.serve.chat import PlainChat
from shoal.node.serve.ensemble.source import open_ensemble
from shoal.node.serve.ensemble.table import ENSEMBLE
from shoal.node.serve.folder import open_folder
from shoal.node.serve.models import scorer_of
from shoal.node.serve.named import open_named
from shoal.node.serve.run_tokens import run_codec
from shoal.node.serve.served import Choices, Served
from shoal.node.serve.threads import use_threads
from shoal.protocol.errors import LocalError

CONFIG, ADAPTERS = "config.json", "adapter_config.json"


def open_source(source: str | Path, choices: Choices) -> Served:
    """The model that is meant; LocalError, which says what is wrong, if there is none that can be served."""
    use_threads(choices.threads)
    path = Path(source)
    if not os.path.isdir(path):  # unlike Path's, False for a name that no folder could have
        if os.path.exists(path) or "/" in str(source):
            raise LocalError(f"{source} is not a folder: name a checkpoint's, or a model's that transformers opens")
        return open_named(str(source), choices)
    if (path / ENSEMBLE).exists():
        choices.check_no_peers(f"the folder {path}")
        return open_ensemble(path, choices)
    choices.check_no_mix(f"{path}, which has no {ENSEMBLE}")
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
    scorer = scorer_of(manifest.model, checkpoint.vectors[PARAMETERS], choices, about.root[:16])
    return Served(
        name=manifest.name,
        scorer=scorer,
        codec=run_codec(manifest, checkpoint.path, choices.tokenizer),
        chat=PlainChat(),
        created=int(about.saved_at),
        sentence=f"run {about.name} ({about.run[:8]}), round {about.round}",
    )
