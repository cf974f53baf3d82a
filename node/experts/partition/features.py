"""What samples are like, as points of whole numbers: so distances are exact, and every machine gives one answer.

Whoever adds a kind of sample adds a class here, and its name to spec.py. All coordinates are below 2**15 in size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from shoal.node.experts.partition.clusters import Points
from shoal.node.experts.partition.words import COLUMNS, counts, rarity, weighed
from shoal.protocol.errors import LocalError

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
    """tf-idf (words.py)."""

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
