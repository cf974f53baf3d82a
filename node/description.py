"""What joining a run would mean, for the person who decides: from its introduction, before anything is joined."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shoal.node.introduction import Introduction
from shoal.node.manifest import DataSpec
from shoal.node.requirements import parameters, requirements
from shoal.node.service import Answer
from shoal.protocol.errors import LocalError
from shoal.protocol.ids import short


def describe(found: Introduction, data: Sequence[Path]) -> Answer:
    """See NodeService.preview_run; `data` is what this node was given. In a thread: it may read all of that."""
    manifest = found.manifest
    needs = requirements(manifest, found.present + 1)
    here, words = data_at_hand(manifest.data, data)
    return {
        "run": manifest.run_id.hex(),
        "name": manifest.name,
        "author": found.author,
        "manifest": manifest.model_dump(mode="json"),
        "parameters": parameters(manifest.model),
        "state": needs.state,
        "memory": {"node": needs.node_memory, "worker": needs.worker_memory},
        "traffic": {"sent": needs.sent, "received": needs.received},
        "data": {"here": here, "words": words},
        "round": found.round,
        "members": found.present,
        "pace": found.pace or None,
    }


def data_at_hand(spec: DataSpec, paths: Sequence[Path]) -> tuple[bool, str]:
    """Whether this machine can train on the run's text, and in words what that is."""
    if spec.name == "stdlib":
        return True, "the sources of Python's standard library, which are here"
    what = f"text files with the digest {spec.digest[:8]}" if spec.digest else "text files of each member's own"
    if not paths:
        return False, f"{what}, which this node was not given: start it with --data PATH"
    if not spec.digest:
        return True, f"{what}; here {', '.join(map(str, paths))}"
    from shoal.node.corpus import files_corpus

    try:
        found = files_corpus(paths).digest
    except LocalError as error:
        return False, f"{what}; {error}"
    if found.hex() == spec.digest:
        return True, f"{what}, which are here"
    return False, f"{what}, and those that this node was given with --data are others ({short(found)})"
