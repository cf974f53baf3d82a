"""Opens the source that the user names, as a model that can be asked.

A source is a folder with a checkpoint of a run, or with several of one run, of which the newest is taken; with experts;
or with a model that transformers opens. Anything that is not a folder, and does not look like a path, is the name of a
run or a family that this machine's node is in.
"""

from __future__ import annotations

import os
from pathlib import Path

from shoal.node.api.client import Client
from shoal.node.api.errors import find_run
from shoal.node.api.liveness import ALIVE_WITHIN
from shoal.node.api.status import label
from shoal.node.base.home import find_home
from shoal.node.inference.chat import PlainChat
from shoal.node.inference.ensemble.folder import open_ensemble
from shoal.node.inference.ensemble.table import ENSEMBLE
from shoal.node.inference.folder import open_folder
from shoal.node.inference.models import run_vocabulary, scorer_of, use_threads
from shoal.node.inference.served import Served, ServeOptions
from shoal.node.training.checkpoint.about import ABOUT
from shoal.node.training.checkpoint.read import Checkpoint, load
from shoal.node.training.checkpoint.scan import PREFIX, find
from shoal.node.training.methods.method import PARAMETERS
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import RunId

CONFIG, ADAPTERS = "config.json", "adapter_config.json"


def open_source(source: str | Path, options: ServeOptions) -> Served:
    """The model of a source; LocalError, which says why, if it cannot be served."""
    use_threads(options.threads)
    path = Path(source)
    if not os.path.isdir(path):  # unlike Path.is_dir this is False, and no error, for names that no folder can have
        if os.path.exists(path) or "/" in str(source):
            raise LocalError(
                f"{source} is not a folder: name a checkpoint's, or a model's that transformers opens",
                code="checkpoint-missing",
            )
        return open_named(str(source), options)
    if (path / ENSEMBLE).exists():
        options.check_no_peers(f"the folder {path}")
        return open_ensemble(path, options)
    options.check_no_mix(f"{path}, which has no {ENSEMBLE}")
    if (path / ABOUT).exists() or path.name.startswith(PREFIX):
        return open_checkpoint(load(path), options)
    if (path / ADAPTERS).exists():
        raise LocalError(
            f"{path} holds adapters, no model: merge them with their base (peft's merge_and_unload)",
            code="adapters-alone",
        )
    if (path / CONFIG).exists():
        return open_folder(path, options)
    return open_checkpoint(load(_newest(path)), options)


def _newest(place: Path) -> Path:
    """The checkpoint of the highest round in a place, such as a node's home or the folder of `shoal up`.

    LocalError if there is none, or if there are several runs, of which the user has to choose one.
    """
    held = {found.path: found.about for found in find(place) if found.about is not None}
    if not held:
        raise LocalError(
            f"{place} is neither a checkpoint ({ABOUT}) nor a model's folder ({CONFIG})", code="checkpoint-missing"
        )
    newest = max(held, key=lambda path: held[path].round)
    runs = len({about.run for about in held.values()})
    if runs > 1:
        raise LocalError(
            f"{place} holds checkpoints of {runs} runs: name one of them, such as {newest}", code="ambiguous-run"
        )
    return newest


def open_checkpoint(checkpoint: Checkpoint, options: ServeOptions) -> Served:
    """The model of a run's checkpoint."""
    manifest, about = checkpoint.manifest, checkpoint.about
    scorer = scorer_of(manifest.model, checkpoint.vectors[PARAMETERS], options, about.root[:16])
    return Served(
        name=manifest.name,
        scorer=scorer,
        vocabulary=run_vocabulary(manifest, checkpoint.path, options.tokenizer),
        chat=PlainChat(),
        created=int(about.saved_at),
        sentence=f"run {about.name} ({about.run[:8]}), round {about.round}",
    )


def open_named(wanted: str, options: ServeOptions) -> Served:
    """A run or family of this node, by its id, at least 8 characters of the id, or its name.

    LocalError if it is unknown, or paused: nobody knows for how long.
    """
    home = find_home()
    status = Client(home, ALIVE_WITHIN).status()
    rows = {str(row["run"]): row for row in status["runs"]}
    run = find_run(wanted, {key: str(row["name"] or "") for key, row in rows.items()})
    if rows[run]["phase"] == "paused":
        raise LocalError(f"the run {label(rows[run])} is {status['paused'] or 'paused'}", code="node-paused")
    if rows[run].get("experts") is not None:
        from shoal.node.inference.ensemble.family import open_family

        return open_family(home, run, options)
    options.check_no_mix(f"{wanted}, a run of one model")
    from shoal.node.inference.live import open_run

    return open_run(home, RunId(bytes.fromhex(run)), options)
