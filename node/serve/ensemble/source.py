"""A folder of experts as something to serve, which is looked at again when its owner says so."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from shoal.node.serve.chat import PlainChat
from shoal.node.serve.ensemble.ensemble import Ensemble
from shoal.node.serve.ensemble.loader import Loader
from shoal.node.serve.ensemble.table import ENSEMBLE
from shoal.node.serve.served import Choices, Served


def open_ensemble(folder: Path, choices: Choices) -> Served:
    """The experts in it; LocalError, which says what is wrong, if they cannot be served as it was chosen."""
    loader = Loader(folder, choices)
    scorer = Ensemble(
        loader.load(), limit=loader.limit, slots=choices.slots, mix=loader.mix.name, at_once=_side_by_side()
    )

    def look_again() -> str:
        before = scorer.panel
        after = loader.load(before.members)
        scorer.take(after)
        names, old = ({each.key: each.name for each in panel.members} for panel in (after, before))
        said = [f"experts: {', '.join(names.values())}"]
        for word, these, those in (("added", names, old), ("removed", old, names)):
            if only := [name for key, name in these.items() if key not in those]:
                said.append(f"{word}: {', '.join(only)}")
        return "; ".join(said)

    return Served(
        name=loader.name,
        scorer=scorer,
        codec=loader.codec,
        chat=PlainChat(),
        created=int((folder / ENSEMBLE).stat().st_mtime),
        sentence=f"experts of {loader.name} in {folder}, mixed by {loader.mix.name}",
        look_again=look_again,
    )


def _side_by_side() -> int:
    """Experts that this machine computes at once, with the threads that each takes."""
    return max(1, (os.cpu_count() or 1) // torch.get_num_threads())
