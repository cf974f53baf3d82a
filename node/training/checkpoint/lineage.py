"""The manifest of a run that continues from a checkpoint: a new lineage, with an id and an author of its own.

Its origin has the round, the history digest and the root of the state. The history digest contains no run's id. So
history, and with it the order of members and their lanes, goes on as if there had been no stop.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from shoal.node.base.explain import explain
from shoal.node.manifest.manifest import Manifest, OriginSpec
from shoal.node.training.checkpoint.about import About
from shoal.protocol.base.errors import LocalError

if TYPE_CHECKING:
    from shoal.node.training.checkpoint.read import Checkpoint

MOST_NAMED, LONGEST_VALUE = 4, 40  # keys in which two manifests differ; characters of a value that is shown


def origin_of(about: About) -> OriginSpec:
    """The origin of a run that continues from a checkpoint."""
    return OriginSpec(
        run=about.run,
        round=about.round,
        history=about.history,
        root=about.root,
        samples=about.samples,
    )


def with_origin(manifest: Manifest, checkpoint: Checkpoint | None) -> Manifest:
    """The manifest of a run that begins with `checkpoint`, if there is one; LocalError if the two do not fit."""
    if checkpoint is not None and manifest.origin is None:
        table = manifest.model_dump() | {"origin": origin_of(checkpoint.about).model_dump()}
        try:
            manifest = Manifest.model_validate(table)
        except ValidationError as error:
            raise LocalError(
                f"this run cannot go on from {checkpoint.path}: {explain(error, Manifest)}", code="manifest-wrong"
            ) from error
    if checkpoint is None and manifest.model.name == "custom":
        raise LocalError(
            "a run of a model of one's own is founded by the script that makes the model: docs/scripts.md",
            code="other-kind-of-run",
        )
    if checkpoint is None and manifest.origin is not None:
        raise LocalError(
            f"this run goes on from round {manifest.origin.round} of another: name the checkpoint of it",
            code="checkpoint-missing",
        )
    check_fits(manifest, checkpoint)
    return manifest


def check_fits(manifest: Manifest, checkpoint: Checkpoint | None) -> None:
    """LocalError unless `checkpoint`, if there is one, has the state that is the run's origin."""
    if checkpoint is None:
        return
    origin, about = manifest.origin, checkpoint.about
    if origin is None:
        raise LocalError(f"run {manifest.name} goes on from no checkpoint: leave yours away", code="other-model")
    if (origin.round, origin.history, origin.root) != (about.round, about.history, about.root):
        raise LocalError(
            f"run {manifest.name} goes on from round {origin.round}, state {origin.root[:8]}; {checkpoint.path} is of "
            f"round {about.round}, state {about.root[:8]}: leave it away, and the state is downloaded",
            code="other-model",
        )
    ours, theirs = manifest, checkpoint.manifest
    if (ours.model, ours.rounds.state_chunk_bytes) != (theirs.model, theirs.rounds.state_chunk_bytes):
        words = f"must be those of the checkpoint: {_differences(ours, theirs)}"
        raise LocalError(f"the manifest's model and rounds.chunk_bytes {words}", code="other-model")
    if ours.method.state != theirs.method.state:
        raise LocalError(
            f"a state that {theirs.method.name} has made cannot be gone on from with {ours.method.name}, which keeps "
            f"something else: let the manifest's method be {theirs.method.name}",
            code="other-model",
        )


def _differences(ours: Manifest, theirs: Manifest) -> str:
    """Which keys differ that decide what a state looks like, with both values where these are short."""
    mine, other = _shape_keys(ours), _shape_keys(theirs)
    keys = [key for key in dict.fromkeys((*mine, *other)) if mine.get(key) != other.get(key)]
    words = [_difference(key, mine.get(key), other.get(key)) for key in keys[:MOST_NAMED]]
    return ", ".join([*words, *([f"and {len(keys) - MOST_NAMED} more"] if len(keys) > MOST_NAMED else [])])


def _shape_keys(manifest: Manifest) -> dict[str, Any]:
    """The keys of a manifest's model, with their tables, and how large the chunks of a state are."""
    found: dict[str, Any] = {}
    tables = [("model", manifest.model.model_dump())]
    for name, table in tables:
        for key, value in table.items():
            if isinstance(value, dict):
                tables.append((f"{name}.{key}", value))
            else:
                found[f"{name}.{key}"] = value
    return found | {"rounds.chunk_bytes": manifest.rounds.state_chunk_bytes}


def _difference(key: str, mine: Any, other: Any) -> str:
    said = [json.dumps(each, default=str) if each is not None else "not given" for each in (mine, other)]
    if max(map(len, said)) > LONGEST_VALUE:
        return f"{key} is another"
    return f"{key} is {said[0]}, there {said[1]}"
