"""A partition of a run's data: into which group a sample belongs, as a function that every peer can evaluate.

The founder learns it: balanced k-means over a sample of the data gives centres, and each gets a handicap, added to the
squared distance to it, so that the groups are even also by `nearest`, which looks at one sample at a time (a power
diagram, or Laguerre-Voronoi: Aurenhammer, SIAM J. Comput. 16, 1987). What goes to others is one safetensors file:

    centres    (k, width) int32, and what the features need: idf (2048) int32 of words, pixels (1) int32 of pictures
    handicaps  (k,) int64

Samples become points of whole numbers (`Features`); so are centres and handicaps. Distances are exact then, and all
machines give a sample to the same group. Whoever adds a kind of sample adds a class of features here, and its
name to the manifest's `[clusters] by`. All coordinates are below 2**15 in size.

Texts are points by how often which words are in them, tf-idf, so that texts on one subject lie near each other. Words
are hashed into a fixed number of columns, so no vocabulary has to be agreed on; the weight of a column falls with the
share of texts that have it: idf = log((1 + n) / (1 + n_w)) + 1. Rows have length 1. The weights go with the centres: a
text that comes later is weighed by those of the texts that were clustered. All of it in whole numbers, steps of
1 / FINE: sums are exact then, in whatever order a machine makes them; a root and a division are rounded in one way only
(IEEE 754); and the logarithm of a count lies nowhere so near to half a step that libraries could differ.
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
from shoal.node.training.data.clusters import Labels, Points, cluster, distances, level
from shoal.protocol.base.errors import LocalError

COLUMNS = 2048
WORD = re.compile(rb"[A-Za-z]{3,}")
FINE = 64  # steps of a logarithm: COLUMNS squares of products of two are below 2**53
LENGTH = 1 << 14  # of a row


def counts(texts: Sequence[bytes]) -> npt.NDArray[np.float64]:
    """How often each column's words are in each text, (n, COLUMNS)."""
    table = np.zeros((len(texts), COLUMNS))
    for row, text in zip(table, texts, strict=True):
        for word, often in Counter(WORD.findall(text.lower())).items():
            row[crc32(word) % COLUMNS] += often
    return table


def rarity(table: npt.NDArray[np.float64]) -> npt.NDArray[np.int32]:
    """idf, (COLUMNS,), of counts, in steps."""
    texts_with = (table > 0).sum(0)
    steps: npt.NDArray[np.int32] = np.rint(FINE * (np.log((1 + len(table)) / (1 + texts_with)) + 1)).astype(np.int32)
    return steps


def weighed(table: npt.NDArray[np.float64], idf: npt.NDArray[np.int32]) -> Points:
    """tf-idf of counts, (n, COLUMNS), tf as 1 + log; rows of LENGTH, or of zeros for a text without words."""
    often = np.where(table > 0, np.rint(FINE * (1 + np.log(np.maximum(table, 1)))), 0.0)
    rows = often * idf
    squares = (rows * rows).sum(1, keepdims=True)
    points: Points = np.rint(rows * LENGTH / np.sqrt(np.where(squares > 0, squares, 1.0)))
    return points


MOST_PIXELS = 1 << 16  # so that squares of distances are exact
Tensors = Mapping[str, npt.NDArray[Any]]


class Features(Protocol):
    """How samples, as bytes, become points."""

    @property
    def width(self) -> int:
        """Of a point."""

    def points(self, samples: Sequence[bytes]) -> Points:
        """Whole numbers, (n, width)."""

    def tensors(self) -> Tensors:
        """What a partition's file must have of it: int32."""


class Words:
    """Of texts: tf-idf."""

    def __init__(self, idf: npt.NDArray[np.int32]) -> None:
        self._idf = idf
        self.width = COLUMNS

    @classmethod
    def of(cls, samples: Sequence[bytes]) -> Words:
        """By how rare each word is in these samples."""
        return cls(rarity(counts(samples)))

    @classmethod
    def read(cls, tensors: Tensors) -> Words:
        """LocalError if a file has no such thing."""
        idf = tensors.get("idf")
        if idf is None or idf.shape != (COLUMNS,) or idf.dtype != np.int32 or idf.min() < 0 or idf.max() >= 1 << 15:
            raise LocalError("the partition's file lacks the weights of its words")
        return cls(idf)

    def points(self, samples: Sequence[bytes]) -> Points:
        """See Features."""
        return weighed(counts(samples), self._idf)

    def tensors(self) -> Tensors:
        """See Features."""
        return {"idf": self._idf}


class Pixels:
    """Grey pictures of one size, a byte for each pixel, as they are."""

    def __init__(self, width: int) -> None:
        self.width = width

    @classmethod
    def of(cls, samples: Sequence[bytes]) -> Pixels:
        """By the size of the first: all have it."""
        return cls(len(samples[0]))

    @classmethod
    def read(cls, tensors: Tensors) -> Pixels:
        """LocalError if a file has no such thing."""
        pixels = tensors.get("pixels")
        if pixels is None or pixels.shape != (1,) or pixels.dtype != np.int32 or not 0 < pixels[0] <= MOST_PIXELS:
            raise LocalError("the partition's file does not say how large its pictures are")
        return cls(int(pixels[0]))

    def points(self, samples: Sequence[bytes]) -> Points:
        """See Features; LocalError if pictures are of another size."""
        if any(len(each) != self.width for each in samples):
            raise LocalError(f"the partition is of pictures of {self.width} pixels, and the data have others")
        return np.stack([np.frombuffer(each, np.uint8) for each in samples]).astype(np.float64)

    def tensors(self) -> Tensors:
        """See Features."""
        return {"pixels": np.array([self.width], np.int32)}


FEATURES: dict[str, type[Words] | type[Pixels]] = {"words": Words, "pixels": Pixels}


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
