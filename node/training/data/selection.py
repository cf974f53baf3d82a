"""Which of the data's texts a run is about: those whose paths match a pattern (`only`), those in one group of like
texts (`cluster`, see partition.py), or all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from blake3 import blake3

from shoal.node.manifest.data import ClustersSpec, DataSpec
from shoal.node.training.data.texts import Text, encode_name
from shoal.protocol.base.errors import LocalError

Selector = Callable[[Sequence[Text]], list[bool]]
"""Says of each text whether the run is about it."""


def all_texts(texts: Sequence[Text]) -> list[bool]:
    """A Selector that selects every text."""
    return [True] * len(texts)


def selector(spec: DataSpec, paths: Sequence[Path]) -> tuple[Selector, Sequence[Path]]:
    """The Selector of a manifest, and `paths` without the partition's file, which is the last if there is one."""
    cluster = spec.cluster
    if cluster is None:
        return lambda texts: [spec.takes(text.name) for text in texts], paths
    is_named = bool(cluster.groups.file and paths)
    file, rest = (paths[-1], paths[:-1]) if is_named else (None, paths)

    def in_group(texts: Sequence[Text]) -> list[bool]:
        candidates = [text for text in texts if spec.takes(text.name)]
        labels = iter(groups_of(candidates, cluster.groups, file))
        return [spec.takes(text.name) and cluster.number in (None, next(labels)) for text in texts]

    return in_group, rest


def groups_of(texts: Sequence[Text], groups: ClustersSpec, file: Path | None) -> list[int]:
    """The group of each text, independent of the other texts; LocalError if `file` is not the manifest's partition."""
    if not groups.is_learned:
        return [_random_group(text, groups) for text in texts]
    from shoal.node.training.data.partition import read

    if file is None or not file.is_file() or blake3(file.read_bytes()).hexdigest() != groups.file:
        raise LocalError(
            f"the partition {groups.file[:8]} of the data is not here, or damaged: join the family again",
            code="data-missing",
        )
    return [int(label) for label in read(file, groups).labels([text.content for text in texts])]


def selected(texts: Sequence[Text], select: Selector) -> list[Text]:
    """The texts that a run is about; LocalError if there are none."""
    part = [text for text, is_selected in zip(texts, select(texts), strict=True) if is_selected]
    if texts and not part:
        raise LocalError(
            "the part is empty: none of the data's texts fits data.only, or is of its cluster", code="data-empty"
        )
    return part


def check_parts(texts: Sequence[Text], parts: Mapping[str, DataSpec], file: Path | None = None) -> None:
    """LocalError if one of the named parts has no text; `file` is the partition's, if there is one."""
    found: dict[tuple[ClustersSpec, tuple[str, ...]], set[int]] = {}  # groups with texts; parts of a family share them
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
            raise LocalError(f"the part {name} is empty: no text of the data {like}", code="data-empty")


def _random_group(text: Text, groups: ClustersSpec) -> int:
    key = groups.seed.to_bytes(8, "little") + encode_name(text.name)
    drawn = blake3(key, derive_key_context="shoal v1 random groups").digest()[:8]
    return int.from_bytes(drawn, "little") % groups.count
