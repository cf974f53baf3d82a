"""What joining a run would mean, for the person who decides: from its introduction, before anything is joined."""

from __future__ import annotations

from shoal.node.dataset.supply import DataStanding
from shoal.node.quantities import size
from shoal.node.run.introduction import Introduction
from shoal.node.service import Answer
from shoal.node.spec.manifest import DataSpec
from shoal.node.spec.requirements import parameters, requirements


def describe(found: Introduction, data: DataStanding, lack: str = "") -> Answer:
    """See NodeService.preview_run; `data` is how it stands with the run's data on this machine.

    `lack` is why it has no room for the run.
    """
    manifest = found.manifest
    needs = requirements(manifest, found.present + 1)
    return {
        "run": manifest.run_id.hex(),
        "name": manifest.name,
        "author": found.author,
        "manifest": manifest.model_dump(mode="json"),
        "parameters": parameters(manifest.model),
        "state": needs.state,
        "memory": {"node": needs.node_memory, "worker": needs.worker_memory, "problem": lack},
        "traffic": {"sent": needs.sent, "received": needs.received},
        "data": {"missing": data.missing, "problem": data.problem, "words": data_in_words(manifest.data, data)},
        "round": found.round,
        "members": found.present,
        "pace": found.pace or None,
    }


def data_in_words(spec: DataSpec, data: DataStanding) -> str:
    """What the run learns from, and whether this machine has it."""
    if spec.name == "own":
        return "what the script of each member trains on"
    if spec.name == "stdlib":
        return "the sources of Python's standard library, which are here"
    if spec.name == "digits":
        return data.problem or "scikit-learn's pictures of digits, which are here"
    if spec.stream is not None:
        return f"{spec.stream.dataset}, which is read from the hub while it is trained on"
    what = f"text files with the digest {spec.digest[:8]}" if spec.digest else "text files of each member's own"
    if data.problem:
        return f"{what}: {data.problem}"
    if data.missing:
        givers = "a member gives" if data.donors == 1 else f"{data.donors} members give"
        return f"{what}: {size(data.missing)} to download, which {givers}"
    return f"{what}, which are here"
