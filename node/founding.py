"""What a run's founder does before there is a run, in threads, as it imports torch or a library of models."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.node.checkpoint.lineage import going_on
from shoal.node.dataset.supply import Supply
from shoal.node.home import Home
from shoal.node.manifest import Manifest
from shoal.protocol.errors import LocalError
from shoal.protocol.ids import PeerId

if TYPE_CHECKING:
    from shoal.node.checkpoint.read import Checkpoint


def check_is_new(manifest: Manifest, is_known: bool) -> None:
    """LocalError if the node is in the run that is to be founded."""
    if is_known:
        raise LocalError(f"this node is in the run '{manifest.name}' already; another seed makes another run")


def check_begins(manifest: Manifest) -> None:
    """LocalError if the run would begin with nothing."""
    if manifest.lacks_weights:
        raise LocalError(
            f"the manifest of '{manifest.name}' has the model's tensors but not its first weights: leave out `tensors` "
            "for fresh ones, or found it --from a checkpoint"
        )


async def begun(manifest: Manifest, checkpoint: Checkpoint | None, data: Supply) -> Manifest:
    """The manifest with its origin, if it begins from a checkpoint; LocalError if the two do not fit."""
    if manifest.experts is None:
        return going_on(manifest, checkpoint)
    paths, experts = [Path(path) for path in await data.get(manifest.data, list)], manifest.experts

    def begin() -> Manifest:
        from shoal.node.corpus import check_parts
        from shoal.node.experts.files import seeded
        from shoal.node.experts.parts import part_manifest

        check_parts(manifest.data, paths, {part.name: part.only for part in experts.parts})
        whole = seeded(manifest, checkpoint) if checkpoint is not None else manifest
        for part in experts.parts:
            part_manifest(whole, part)
        return whole

    return await asyncio.to_thread(begin)


async def found(
    manifest: Manifest, data: Supply, weights: Sequence[Path], home: Home, me: PeerId
) -> tuple[Manifest, Checkpoint]:
    """The rest of a manifest whose model its seed alone does not give, and its first weights (models/naming.py).

    `data` has the run's text. LocalError if nothing can come of it, and then nothing is left on the disk.
    """
    if manifest.experts is not None:
        raise LocalError("the experts of a library's model begin with a checkpoint: found the family --from one")
    paths = await _tokenized(manifest, data)

    def build() -> tuple[Manifest, Checkpoint]:
        from shoal.node.models.naming import found

        return found(manifest, weights, home, me, lambda whole: _check_tokens(whole, paths))

    return await asyncio.to_thread(build)


def forget_founded(home: Home, manifest: Manifest) -> None:
    """A run that was founded is not entered: what `found` has written for it is nobody's."""
    shutil.rmtree(home.run_folder(manifest.run_id.hex()), ignore_errors=True)


async def check_tokens(manifest: Manifest, data: Supply) -> None:
    """LocalError if the model lacks tokens of the run's tokenizer; `data` has the run's text."""
    await asyncio.to_thread(_check_tokens, manifest, await _tokenized(manifest, data))


async def _tokenized(manifest: Manifest, data: Supply) -> list[Path]:
    """Where the text is that a tokenizer is for, and may be among."""
    return [Path(path) for path in await data.get(manifest.data, list)] if manifest.data.tokenizer else []


def _check_tokens(manifest: Manifest, paths: Sequence[Path]) -> None:
    if manifest.data.tokenizer:
        from shoal.node.corpus import tokenizer_of

        tokenizer_of(manifest.data, paths, manifest.model.vocab)
