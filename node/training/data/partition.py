"""A partition of a run's data: the function from samples to groups, which every peer evaluates alike.

The founder learns it. Balanced k-means over a sample of the data gives centres. Each centre gets a handicap that is
added to squared distances, so that groups stay even when each sample goes to its nearest centre (a power diagram, or
Laguerre-Voronoi diagram: Aurenhammer, SIAM J. Comput. 16, 1987). Other peers get one safetensors file:

    centres    (k, width) int32, and what the features need: idf (2048) int32 of words, pixels (1) int32 of pictures
    handicaps  (k,) int64

Points (`Features`), centres and handicaps are whole numbers, and all coordinates are below 2**15 in size. So distances
are exact, and all machines put a sample into the same group. A new kind of sample needs a class of features here, and
its name in the manifest's `[clusters] by`.

Texts become points by tf-idf over their words, so that texts on one subject lie near each other:
- Words are hashed into a fixed number of columns, so no vocabulary has to be agreed on.
- The weight of a column falls with the share of texts that have it: idf = log((1 + n) / (1 + n_w)) + 1. The file holds
  these weights, so later texts are weighted as the clustered ones were.
- Rows are scaled to the same length.
- Logarithms are whole numbers of steps of 1 / FINE. So sums are exact in any order; root and division are rounded as
  IEEE 754 says; and no logarithm of a count is so near to half a step that libraries could round it differently.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from shoal.node.manifest.data import ClustersSpec
from shoal.node.training.data.clusters import Labels, Points, balancing_handicaps, cluster, distances
from shoal.protocol.base.errors import LocalError

COLUMNS = 2048
WORD = re.compile(rb"[A-Za-z]{3,}")
FINE = 64  # steps per unit of a logarithm, so few that a sum of COLUMNS squared products stays below 2**53
LENGTH = 1 << 14  # Euclidean length of a row


def word_counts(texts: Sequence[bytes]) -> npt.NDArray[np.float64]:
    """How often the words of each column occur in each text, (n, COLUMNS)."""
    table = np.zeros((len(texts), COLUMNS))
    for row, text in zip(table, texts, strict=True):
        for word, often in Counter(WORD.findall(text.lower())).items():
            row[crc32(word) % COLUMNS] += often
    return table


def idf_of(table: npt.NDArray[np.float64]) -> npt.NDArray[np.int32]:
    """The idf of each column (COLUMNS,), in steps of 1 / FINE, from counts (n, COLUMNS)."""
    texts_with = (table > 0).sum(0)
    steps: npt.NDArray[np.int32] = np.rint(FINE * (np.log((1 + len(table)) / (1 + texts_with)) + 1)).astype(np.int32)
    return steps


def tf_idf(table: npt.NDArray[np.float64], idf: npt.NDArray[np.int32]) -> Points:
    """tf-idf (n, COLUMNS) of counts, with tf = 1 + log(count); rows have LENGTH, or are 0 for a text without words."""
    often = np.where(table > 0, np.rint(FINE * (1 + np.log(np.maximum(table, 1)))), 0.0)
    rows = often * idf
    squares = (rows * rows).sum(1, keepdims=True)
    points: Points = np.rint(rows * LENGTH / np.sqrt(np.where(squares > 0, squares, 1.0)))
    return points


MAX_PIXELS = 1 << 16  # so that squares of distances are exact
Tensors = Mapping[str, npt.NDArray[Any]]


class Features(Protocol):
    """How samples, given as bytes, become points."""

    @property
    def width(self) -> int:
        """Number of coordinates of a point."""

    def points(self, samples: Sequence[bytes]) -> Points:
        """The samples' points, (n, width): whole numbers."""

    def tensors(self) -> Tensors:
        """The int32 tensors that a partition's file needs to restore these features."""


class Words:
    """Features of texts: tf-idf."""

    def __init__(self, idf: npt.NDArray[np.int32]) -> None:
        self._idf = idf
        self.width = COLUMNS

    @classmethod
    def of(cls, samples: Sequence[bytes]) -> Words:
        """Features with the idf of these samples."""
        return cls(idf_of(word_counts(samples)))

    @classmethod
    def read(cls, tensors: Tensors) -> Words:
        """The features in a file's tensors; LocalError if they are missing or invalid."""
        idf = tensors.get("idf")
        if idf is None or idf.shape != (COLUMNS,) or idf.dtype != np.int32 or idf.min() < 0 or idf.max() >= 1 << 15:
            raise LocalError("the partition's file lacks the weights of its words", code="data-unusable")
        return cls(idf)

    def points(self, samples: Sequence[bytes]) -> Points:
        """See Features."""
        return tf_idf(word_counts(samples), self._idf)

    def tensors(self) -> Tensors:
        """See Features."""
        return {"idf": self._idf}


class Pixels:
    """Features of grey pictures of one size: the bytes of their pixels."""

    def __init__(self, width: int) -> None:
        self.width = width

    @classmethod
    def of(cls, samples: Sequence[bytes]) -> Pixels:
        """Features for pictures of the size of the first sample."""
        return cls(len(samples[0]))

    @classmethod
    def read(cls, tensors: Tensors) -> Pixels:
        """The features in a file's tensors; LocalError if they are missing or invalid."""
        pixels = tensors.get("pixels")
        if pixels is None or pixels.shape != (1,) or pixels.dtype != np.int32 or not 0 < pixels[0] <= MAX_PIXELS:
            raise LocalError("the partition's file does not say how large its pictures are", code="data-unusable")
        return cls(int(pixels[0]))

    def points(self, samples: Sequence[bytes]) -> Points:
        """See Features; LocalError if pictures are of another size."""
        if any(len(each) != self.width for each in samples):
            raise LocalError(
                f"the partition is of pictures of {self.width} pixels, and the data have others", code="data-unusable"
            )
        return np.stack([np.frombuffer(each, np.uint8) for each in samples]).astype(np.float64)

    def tensors(self) -> Tensors:
        """See Features."""
        return {"pixels": np.array([self.width], np.int32)}


FEATURES: dict[str, type[Words] | type[Pixels]] = {"words": Words, "pixels": Pixels}


MAX_SAMPLES = 4096  # that are clustered, spread evenly over the data
MAX_FILE = 16 << 20  # bytes: 32 centres of 65,536 pixels are 8 MiB
INTEGERS = ("I32", "I64")  # dtypes, as safetensors names them
BATCH = 512  # samples whose points are in memory at once


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Centres (k, width) and handicaps (k,), whole numbers in float64."""

    features: Features
    centres: Points
    handicaps: npt.NDArray[np.float64]

    def labels(self, samples: Sequence[bytes]) -> Labels:
        """The group of each sample, (n,)."""
        found = [self._of_points(self.features.points(part)) for part in _in_parts(samples)]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def write(self, path: Path) -> None:
        """Writes the partition's file."""
        centres, handicaps = self.centres.astype(np.int32), self.handicaps.astype(np.int64)
        save_file({**self.features.tensors(), "centres": centres, "handicaps": handicaps}, path)

    def _of_points(self, points: Points) -> Labels:
        labels: Labels = (distances(points, self.centres) + self.handicaps).argmin(1)
        return labels


def learn(samples: Sequence[bytes], weights: Sequence[int], spec: ClustersSpec) -> Partition:
    """Learns a partition whose groups have about the same total weight; LocalError if there are too few samples."""
    step = -(-len(samples) // MAX_SAMPLES) if samples else 1
    chosen, weight = samples[::step], np.array(weights[::step], np.float64)
    features = FEATURES[spec.by].of(chosen)
    points = features.points(chosen)
    try:
        found = cluster(points, spec.count, spec.seed, weights=weight)
    except ValueError as error:
        raise LocalError(f"the data cannot be cut into {spec.count} groups: {error}", code="data-unusable") from error
    centres = np.rint(found.centres)
    return Partition(features, centres, np.rint(balancing_handicaps(distances(points, centres), weight)))


def read(path: Path, spec: ClustersSpec) -> Partition:
    """The partition in a file; LocalError unless it is a valid one for `spec`."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise LocalError(
                f"{path} is not the file of a partition: it has more than {MAX_FILE >> 20} MiB", code="data-unusable"
            )
        tensors = _integers(path)
    except (OSError, SafetensorError) as error:
        raise LocalError(f"{path} is not the file of a partition: {error}", code="data-unusable") from error
    features = FEATURES[spec.by].read(tensors)
    centres, handicaps = tensors.get("centres"), tensors.get("handicaps")
    if centres is None or centres.dtype != np.int32 or centres.shape != (spec.count, features.width):
        raise LocalError(f"{path} has no centres of {spec.count} groups", code="data-unusable")
    if handicaps is None or handicaps.dtype != np.int64 or handicaps.shape != (spec.count,):
        raise LocalError(f"{path} has no handicaps of {spec.count} groups", code="data-unusable")
    partition = Partition(features, centres.astype(np.float64), handicaps.astype(np.float64))
    if np.abs(partition.centres).max() >= 1 << 15 or np.abs(partition.handicaps).max() >= 1 << 50:
        raise LocalError(f"{path} has numbers with which distances would not be exact", code="data-unusable")
    return partition


def _integers(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The integer tensors of a file; numpy does not know some of the other dtypes."""
    with safe_open(path, "numpy") as file:
        kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
        return {name: file.get_tensor(name) for name, kind in kinds.items() if kind in INTEGERS}


def _in_parts(samples: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for start in range(0, len(samples), BATCH):
        yield samples[start : start + BATCH]
