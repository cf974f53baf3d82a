"""What a family's founder computes from the data: the partition, if any, and a check that every part has a text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shoal.node.experts.parts import experts_of, part_manifest
from shoal.node.manifest.manifest import Manifest
from shoal.node.training.data import selection
from shoal.node.training.data.corpus import texts_of_data
from shoal.node.training.data.partition import learn


def write_partition(family: Manifest, paths: Sequence[Path], file: Path) -> None:
    """The file of the family's partition; LocalError if its data cannot be cut so."""
    clusters = experts_of(family).clusters
    assert clusters is not None
    texts = [text.content for text in texts_of_data(family.data, paths) if family.data.takes(text.name)]
    learn(texts, [len(text) for text in texts], clusters).write(file)


def check_parts(family: Manifest, paths: Sequence[Path], file: Path | None = None) -> None:
    """LocalError unless each part can be a run, and has a text of the data; `file` is the partition's."""
    parts = {part.name: part_manifest(family, part).data for part in experts_of(family).parts}
    selection.check_parts(texts_of_data(family.data, paths), parts, file)
