"""A partition: into which group a sample belongs, as a function that every peer can evaluate, and its file.

The founder learns it: balanced k-means over a sample of the data gives centres, and each gets a handicap, added to the
squared distance to it, so that the groups are even also by `nearest`, which looks at one sample at a time (a power
diagram, or Laguerre-Voronoi: Aurenhammer, SIAM J. Comput. 16, 1987). What goes to others is one safetensors file:

    centres    (k, width) int32, and what the features need (features.py)
    handicaps  (k,) int64

Points, centres and handicaps are whole numbers, so all machines give a sample to the same group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from shoal.node.experts.partition.clusters import Labels, Points, cluster, distances, level
from shoal.node.experts.partition.features import FEATURES, Features
from shoal.node.experts.partition.spec import ClustersSpec
from shoal.protocol.errors import LocalError

SAMPLED = 4096  # samples that are clustered, at most, spread evenly over the data
MOST_BYTES = 16 << 20  # of a file: 32 centres of 65,536 pixels are 8 MiB
INTEGERS = ("I32", "I64")  # as safetensors has them
AT_ONCE = 512  # samples whose points are in memory


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Centres (k, width) and handicaps (k,), whole numbers in float64."""

    features: Features
    centres: Points
    handicaps: npt.NDArray[np.float64]

    def labels(self, samples: Sequence[bytes]) -> Labels:
        """The group of each."""
        found = [self._of_points(self.features.points(part)) for part in _in_parts(samples)]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def write(self, path: Path) -> None:
        """Its file."""
        centres, handicaps = self.centres.astype(np.int32), self.handicaps.astype(np.int64)
        save_file({**self.features.tensors(), "centres": centres, "handicaps": handicaps}, path)

    def _of_points(self, points: Points) -> Labels:
        labels: Labels = (distances(points, self.centres) + self.handicaps).argmin(1)
        return labels


def learn(samples: Sequence[bytes], weights: Sequence[int], spec: ClustersSpec) -> Partition:
    """Groups of samples that weigh alike together; LocalError if there are too few samples for that."""
    step = -(-len(samples) // SAMPLED) if samples else 1
    chosen, weight = samples[::step], np.array(weights[::step], np.float64)
    features = FEATURES[spec.by].of(chosen)
    points = features.points(chosen)
    try:
        found = cluster(points, spec.count, spec.seed, weights=weight)
    except ValueError as error:
        raise LocalError(f"the data cannot be cut into {spec.count} groups: {error}") from error
    centres = np.rint(found.centres)
    return Partition(features, centres, np.rint(level(distances(points, centres), weight)))


def read(path: Path, spec: ClustersSpec) -> Partition:
    """The partition in a file; LocalError unless it can be one of that many groups."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise LocalError(f"{path} is not the file of a partition: it has more than {MOST_BYTES >> 20} MiB")
        tensors = _integers(path)
    except (OSError, SafetensorError) as error:
        raise LocalError(f"{path} is not the file of a partition: {error}") from error
    features = FEATURES[spec.by].read(tensors)
    centres, handicaps = tensors.get("centres"), tensors.get("handicaps")
    if centres is None or centres.dtype != np.int32 or centres.shape != (spec.count, features.width):
        raise LocalError(f"{path} has no centres of {spec.count} groups")
    if handicaps is None or handicaps.dtype != np.int64 or handicaps.shape != (spec.count,):
        raise LocalError(f"{path} has no handicaps of {spec.count} groups")
    partition = Partition(features, centres.astype(np.float64), handicaps.astype(np.float64))
    if np.abs(partition.centres).max() >= 1 << 15 or np.abs(partition.handicaps).max() >= 1 << 50:
        raise LocalError(f"{path} has numbers with which distances would not be exact")
    return partition


def _integers(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The tensors of a file that are of whole numbers: numpy knows none of some other kinds."""
    with safe_open(path, "numpy") as file:
        kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
        return {name: file.get_tensor(name) for name, kind in kinds.items() if kind in INTEGERS}


def _in_parts(samples: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for start in range(0, len(samples), AT_ONCE):
        yield samples[start : start + AT_ONCE]
