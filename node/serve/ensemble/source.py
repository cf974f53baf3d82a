"""A folder of experts as something to serve, which is looked at again when its owner says so."""

from __future__ import annotations

from pathlib import Path

from shoal.node.serve.chat import PlainChat
from shoal.node.serve.ensemble.ensemble import Ensemble
from shoal.node.serve.ensemble.loader import Loader
from shoal.node.serve.ensemble.panel import changes
from shoal.node.serve.ensemble.table import ENSEMBLE
from shoal.node.serve.served import Choices, Served
from shoal.node.serve.threads import side_by_side


def open_ensemble(folder: Path, choices: Choices) -> Served:
    """The experts in it; LocalError, which says what is wrong, if they cannot be served as it was chosen."""
    loader = Loader(folder, choices)
    scorer = Ensemble(
        loader.load(), limit=loader.limit, slots=choices.slots, mix=loader.mix.name, at_once=side_by_side()
    )

    def look_again() -> str:
        before = scorer.panel
        after = loader.load(before.members)
        scorer.take(after)
        return changes(before.names, after.names)

    return Served(
        name=loader.name,
        scorer=scorer,
        codec=loader.codec,
        chat=PlainChat(),
        created=int((folder / ENSEMBLE).stat().st_mtime),
        sentence=f"experts of {loader.name} in {folder}, mixed by {loader.mix.name}",
        look_again=look_again,
    )
