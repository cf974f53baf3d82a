"""What a founder does before the run exists; in threads, as it imports torch or a library of models."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.node.base.atomic import replace_file
from shoal.node.base.home import Home
from shoal.node.base.pools import LONG
from shoal.node.base.room import or_no_room
from shoal.node.manifest.manifest import Introduction, Manifest, Sign
from shoal.node.peers.remembered import remembered_runs
from shoal.node.training.checkpoint.lineage import with_origin
from shoal.node.training.data.supply import Supply
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.messages.genesis import run_id, sign_genesis
from shoal.protocol.net.system.identity import Identity

if TYPE_CHECKING:
    from shoal.node.experts.families import Families
    from shoal.node.training.checkpoint.read import Checkpoint

FOUNDED = "founded"  # name of an empty file in a run's folder


def new_run(manifest: Manifest, identity: Identity, nonce: bytes) -> Introduction:
    """A run of a complete manifest, whose author is `identity`; nobody is in it yet."""
    run = run_id(manifest.digest, identity.peer, nonce)
    return Introduction(manifest, sign_genesis(manifest.canonical(), nonce, identity.signer(run)), {})


def mark_founded(home: Home, run: str) -> None:
    """Write down that we begin this run as its first voter; LocalError if we have done so before, or cannot write.

    The mark stays when the run is left and its votes are forgotten: a second beginning would be the same voter in the
    same life, and vote anew on what others have decided with it.
    """
    mark = home.make_run_folder(run) / FOUNDED
    if mark.exists():
        raise LocalError(
            f"this node has founded the run {run} before, and has left it: it may not vote there again. Join it by its "
            "link, or found another run: with another nonce, or with none",
            code="run-left",
        )
    with or_no_room(f"the run {run[:8]} is not founded"):
        replace_file(mark, [])


def unmark_founded(home: Home, run: str) -> None:
    """The run was not begun after all, so nobody has seen a vote of ours; unless a restart will enter it."""
    if run not in remembered_runs(home):
        (home.run_folder(run) / FOUNDED).unlink(missing_ok=True)


def check_begins(manifest: Manifest) -> None:
    """LocalError if the run would have no first weights."""
    if manifest.lacks_weights:
        raise LocalError(
            f"the manifest of '{manifest.name}' has the model's tensors but not its first weights: leave out `tensors` "
            "for fresh ones, or found it --from a checkpoint",
            code="manifest-wrong",
        )


async def resolve_origin(
    manifest: Manifest, checkpoints: Sequence[Checkpoint], data: Supply, families: Families
) -> tuple[Manifest, Checkpoint | None]:
    """The manifest with its origin, and the origin's checkpoint, if there is one; LocalError if they do not fit.

    A family's manifest also gets the digests of its partition and of the seeds of its parts, whose files are then kept
    by `families`.
    """
    if manifest.experts is None:
        if len(checkpoints) > 1:
            raise LocalError(
                "a run goes on from one checkpoint: only the experts of a family begin with several", code="bad-flags"
            )
        checkpoint = next(iter(checkpoints), None)
        return with_origin(manifest, checkpoint), checkpoint
    paths = [Path(path) for path in await data.get(manifest.data, list)]
    parted, file = await _parted(manifest, paths, families)
    whole, seed = await _seeded(parted, checkpoints, families)

    def check() -> None:
        from shoal.node.experts.founding import check_parts

        check_parts(whole, paths, file)

    await LONG.run(check)
    return whole, seed


async def _seeded(
    manifest: Manifest, checkpoints: Sequence[Checkpoint], families: Families
) -> tuple[Manifest, Checkpoint | None]:
    """A family's manifest with its seeds, and the checkpoint of its own model; seeds of other models become files."""
    if not checkpoints:
        return manifest, None
    from shoal.node.experts.founding import allot, seeded, with_own, write_seed

    seed, own = allot(manifest, checkpoints)
    whole = await LONG.run(seeded, manifest, seed) if seed is not None else manifest
    for each in own:
        made = await families.keep(partial(write_seed, seed=each))
        whole = with_own(whole, each, made.digest)
    return whole, seed


async def _parted(manifest: Manifest, paths: list[Path], families: Families) -> tuple[Manifest, Path | None]:
    """A family's manifest with its partition's digest, and the partition's file, which is written if there is none."""
    experts = manifest.experts
    if experts is None or experts.clusters is None or not experts.clusters.is_learned:
        return manifest, None
    if named := experts.clusters.file:
        return manifest, families.path(Digest(bytes.fromhex(named)))

    def write(path: Path) -> None:
        from shoal.node.experts.founding import write_partition

        write_partition(manifest, paths, path)

    made = await families.keep(write)
    return manifest.model_copy(update={"experts": experts.with_file(made.digest.hex())}), made.path


async def first_weights(
    manifest: Manifest,
    data: Supply,
    weights: Sequence[Path],
    home: Home,
    sign: Sign,
    me: PeerId,
    check_room: Callable[[Manifest], None],
) -> tuple[Introduction, Checkpoint]:
    """The run of a library's model, to be founded, and the checkpoint of its first weights (first_weights.py).

    `data` has the run's text; `check_room` is called once the model's size is known, before it is built.
    LocalError if the run cannot be founded; then nothing is left on the disk.
    """
    if manifest.experts is not None:
        raise LocalError(
            "the experts of a library's model begin with a checkpoint: found the family --from one", code="bad-flags"
        )
    paths = await _tokenized(manifest, data)

    def build() -> tuple[Introduction, Checkpoint]:
        from shoal.node.run.first_weights import create_first_weights

        check = partial(_check_tokens, paths=paths)
        return create_first_weights(manifest, weights, home, sign, me, check, check_room)

    with or_no_room(f"the model of the run '{manifest.name}' cannot be made"):
        return await LONG.run(build)


def forget_founded(home: Home, found: Introduction) -> None:
    """Deletes what `first_weights` has written, when the founded run is not entered; not what an earlier one has."""
    folder = home.run_folder(found.run.hex())
    if not (folder / FOUNDED).exists():
        shutil.rmtree(folder, ignore_errors=True)


async def check_tokens(manifest: Manifest, data: Supply) -> None:
    """LocalError if the model's vocabulary is too small for the run's tokenizer; `data` has the run's text."""
    await LONG.run(_check_tokens, manifest, await _tokenized(manifest, data))


async def _tokenized(manifest: Manifest, data: Supply) -> list[Path]:
    """The paths of the run's text, among which its tokenizer may be; none for a run without a tokenizer."""
    return [Path(path) for path in await data.get(manifest.data, list)] if manifest.data.tokenizer else []


def _check_tokens(manifest: Manifest, paths: Sequence[Path]) -> None:
    if manifest.data.tokenizer:
        from shoal.node.training.data.corpus import tokenizer_of

        tokenizer_of(manifest.data, paths, manifest.model.vocab)
