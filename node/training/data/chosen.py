"""Which of the data's texts a run is about: those whose paths fit a pattern (`only`), or that are of one group of like
texts (`cluster`, partition.py), or all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from blake3 import blake3

from shoal.node.manifest.data import ClustersSpec, DataSpec
from shoal.node.training.data.texts import Text, encode_name
from shoal.protocol.base.errors import LocalError

Chooses = Callable[[Sequence[Text]], list[bool]]
"""Of each text, whether a run is about it."""


def all_texts(texts: Sequence[Text]) -> list[bool]:
    """Every one."""
    return [True] * len(texts)


def chooser(spec: DataSpec, paths: Sequence[Path]) -> tuple[Chooses, Sequence[Path]]:
    """What a manifest chooses, and `paths` without the partition's file, which is the last if it names one."""
    cluster = spec.cluster
    if cluster is None:
        return lambda texts: [spec.takes(text.name) for text in texts], paths
    is_named = bool(cluster.groups.file and paths)
    file, rest = (paths[-1], paths[:-1]) if is_named else (None, paths)

    def of_group(texts: Sequence[Text]) -> list[bool]:
        candidates = [text for text in texts if spec.takes(text.name)]
        labels = iter(groups_of(candidates, cluster.groups, file))
        return [spec.takes(text.name) and cluster.number in (None, next(labels)) for text in texts]

    return of_group, rest


def groups_of(texts: Sequence[Text], groups: ClustersSpec, file: Path | None) -> list[int]:
    """The group of each text, which depends on no other text; LocalError if the partition's file is not the one."""
    if not groups.is_learned:
        return [_by_chance(text, groups) for text in texts]
    from shoal.node.training.data.partition import read

    if file is None or not file.is_file() or blake3(file.read_bytes()).hexdigest() != groups.file:
        raise LocalError(f"the partition {groups.file[:8]} of the data is not here, or damaged: join the family again")
    return [int(label) for label in read(file, groups).labels([text.content for text in texts])]


def part_of(texts: Sequence[Text], chooses: Chooses) -> list[Text]:
    """The texts that a run is about; LocalError if there are none."""
    part = [text for text, is_chosen in zip(texts, chooses(texts), strict=True) if is_chosen]
    if texts and not part:
        raise LocalError("the part is empty: none of the data's texts fits data.only, or is of its cluster")
    return part


def check_parts(texts: Sequence[Text], parts: Mapping[str, DataSpec], file: Path | None = None) -> None:
    """LocalError unless each part, by its name, has one of the texts; `file` is the partition's, if there is one."""
    found: dict[tuple[ClustersSpec, tuple[str, ...]], set[int]] = {}  # all of a family are of one cut: made once
    for name, spec in parts.items():
        taken = [text for text in texts if spec.takes(text.name)]
        if (cluster := spec.cluster) is not None and taken:
            key = cluster.groups, spec.only
            if key not in found:
                found[key] = set(groups_of(taken, cluster.groups, file))
            is_there = cluster.number is None or cluster.number in found[key]
        else:
            is_there = bool(taken)
        if not is_there:
            like = f"is named like {', '.join(spec.only)}" if spec.cluster is None else "is of this group"
            raise LocalError(f"the part {name} is empty: no text of the data {like}")


def _by_chance(text: Text, groups: ClustersSpec) -> int:
    key = groups.seed.to_bytes(8, "little") + encode_name(text.name)
    drawn = blake3(key, derive_key_context="shoal v1 random groups").digest()[:8]
    return int.from_bytes(drawn, "little") % groups.count
