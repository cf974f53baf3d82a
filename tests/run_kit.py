"""Runs on paper, for tests: of one author and with one nonce, so that a manifest always gives the same id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.node.base.home import Home
from shoal.node.manifest.manifest import Introduction, Manifest
from shoal.node.run.founding import new_run
from shoal.protocol.base.ids import PeerId, RunId
from shoal.protocol.messages.genesis import NONCE_SIZE, Genesis
from shoal.protocol.net.system.identity import Identity

if TYPE_CHECKING:
    from shoal.node.training.checkpoint.read import Checkpoint

AUTHOR = Identity.of_seed(b"author of the tests' runs".ljust(32))
NONCE = bytes(NONCE_SIZE)


def on_paper(manifest: Manifest) -> Introduction:
    """The manifest's run, signed by its author."""
    return new_run(manifest, AUTHOR, NONCE)


def introduced(manifest: Manifest, members: dict[PeerId, tuple[str, ...]] | None = None, **more: Any) -> Introduction:
    """What a newcomer is told of the manifest's run."""
    return replace(on_paper(manifest), members=members or {}, **more)


def unsigned(manifest: Manifest, author: PeerId = AUTHOR.peer) -> Genesis:
    """The genesis of the manifest's run, which nobody has signed."""
    return Genesis(manifest.canonical(), author, NONCE, b"")


def id_of(manifest: Manifest, author: PeerId = AUTHOR.peer) -> RunId:
    """The id of the manifest's run."""
    return unsigned(manifest, author).run


def first_weights(
    manifest: Manifest, weights: Sequence[Path], home: Home, *checks: Callable[[Manifest], None]
) -> tuple[Manifest, Checkpoint]:
    """The complete manifest of a library's model, and the checkpoint of its first weights."""
    from shoal.node.run.first_weights import create_first_weights

    found, checkpoint = create_first_weights(manifest, weights, home, on_paper, AUTHOR.peer, *checks)
    return found.manifest, checkpoint
