"""Experts merged into a checkpoint: what new experts branch from, instead of from the seed (arXiv 2208.03306, 3.2).

It is a checkpoint like any other: `shoal run create --from` begins a family or a run with it, `shoal serve` serves it.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from shoal.node.checkpoint.write import write_checkpoint
from shoal.node.experts.files import Beginning, first_state
from shoal.node.explain import explain
from shoal.node.serve.ensemble.loader import Loader
from shoal.node.serve.ensemble.mix import AVERAGE, PCB
from shoal.node.serve.ensemble.table import read_table
from shoal.node.serve.served import Choices
from shoal.node.spec.manifest import Manifest
from shoal.node.spec.model import AnyModel
from shoal.protocol.errors import LocalError
from shoal.protocol.ids import digest


def write_merge(folder: Path, out: Path, choices: Choices) -> Path:
    """Merge the experts in a folder, and say where in `out` the checkpoint lies; LocalError if that cannot be."""
    loader = Loader(folder, choices)
    if not loader.mix.is_merge:
        raise LocalError(f"--mix {loader.mix.name} merges nothing: say {AVERAGE} or {PCB}")
    table = read_table(folder)
    model, theta = loader.merged(table)
    manifest = _manifest(table.name, model)
    files = [bytes.fromhex(each.blake3) for each in table.experts]
    history = digest("merged experts", loader.mix.name.encode(), *files)
    start = Beginning(None, 0, history, sum(each.tokens for each in table.experts))
    state, about = first_state(manifest, theta, start, ())
    return write_checkpoint(out, about, state.current, None)


def _manifest(name: str, model: AnyModel) -> Manifest:
    """Of a run that would begin with it."""
    try:
        return Manifest.model_validate({"name": name, "model": model.model_dump()})
    except ValidationError as error:
        raise LocalError(f"no run can begin with a merge of {name}: {explain(error, Manifest)}") from error
