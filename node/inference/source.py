"""From what the user names to a model that can be asked.

A source is a folder with a run's checkpoint, experts or what transformers opens; what is no folder, and looks like no
path, is the name of a run or a family that the node of this machine is in.
"""

from __future__ import annotations

import os
from pathlib import Path

from shoal.node.api.client import Client
from shoal.node.api.errors import find_run
from shoal.node.base.home import find_home
from shoal.node.inference.chat import PlainChat
from shoal.node.inference.ensemble.folder import open_ensemble
from shoal.node.inference.ensemble.table import ENSEMBLE
from shoal.node.inference.folder import open_folder
from shoal.node.inference.models import run_vocabulary, scorer_of, use_threads
from shoal.node.inference.served import Choices, Served
from shoal.node.training.checkpoint.about import ABOUT
from shoal.node.training.checkpoint.read import Checkpoint, load
from shoal.node.training.checkpoint.scan import PREFIX, find
from shoal.node.training.methods.method import PARAMETERS
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import RunId

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
        vocabulary=run_vocabulary(manifest, checkpoint.path, choices.tokenizer),
        chat=PlainChat(),
        created=int(about.saved_at),
        sentence=f"run {about.name} ({about.run[:8]}), round {about.round}",
    )


def open_named(wanted: str, choices: Choices) -> Served:
    """A run or a family, by its id, the first 8 characters of it or more, or its name; LocalError if there is none."""
    home = find_home()
    rows = {str(row["run"]): row for row in Client(home).status()["runs"]}
    run = find_run(wanted, {key: str(row["name"] or "") for key, row in rows.items()})
    if rows[run].get("experts") is not None:
        from shoal.node.inference.ensemble.family import open_family

        return open_family(home, run, choices)
    choices.check_no_mix(f"{wanted}, a run of one model")
    from shoal.node.inference.live import open_run

    return open_run(home, RunId(bytes.fromhex(run)), choices)
