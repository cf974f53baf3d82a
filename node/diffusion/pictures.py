"""The pictures that a run learns from, and the batches of its inner steps.

A batch is a pure function of (run seed, lane, round, step), as for text (node/training/data/lanes.py): BLAKE3 draws
the pictures, with replacement, their times, the noise, and whose class is left out. Normal numbers are made from
uniform ones by the Box-Muller transform in float64; their last bits may differ between machines, which does not matter,
as no other machine repeats them.

The pictures are scikit-learn's digits: 1,797 real ones of 8 x 8 grey pixels (the test part of UCI's "Optical
Recognition of Handwritten Digits"). One in five is held out, chosen by the hash of its pixels.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from blake3 import blake3
from torch import Tensor

from shoal.node.base.extra import install_command
from shoal.node.manifest.data import ClusterSpec
from shoal.node.manifest.model import DIGITS
from shoal.node.training.data.selection import groups_of
from shoal.node.training.data.texts import Text
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import Digest, digest

CLASSLESS = 0.1  # the share of rows without a class, for classifier-free guidance (arXiv 2207.12598)
HEAD = 3  # columns of a row before its pixels: class, cluster, time
DRAWS = "shoal v1 picture rows"
VALIDATION = (0, (1 << 64) - 1, 0)  # seed, lane and round that no worker ever has
LOOKS = 8  # rows of each validation picture, at different times
HELD_OUT = 0.2  # of all pictures
CLASSES = DIGITS[1]
BRIGHTEST = 16  # a pixel is 0 to 16


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one step, unpacked."""

    classes: Tensor  # (B,) int64; the number of classes where the class is left out
    clusters: Tensor  # (B,) int64
    t: Tensor  # (B,)
    x0: Tensor  # (B, P), -1 to 1
    noise: Tensor  # (B, P)


@dataclass(frozen=True, slots=True, eq=False)
class Pictures:
    """Pictures in rows (n, P) from -1 to 1, and the class and the cluster of each, (n,)."""

    pixels: npt.NDArray[np.float32]
    classes: npt.NDArray[np.int64]
    clusters: npt.NDArray[np.int64]
    count: int  # of classes

    def __len__(self) -> int:
        return len(self.pixels)

    def only(self, chosen: npt.NDArray[Any]) -> Pictures:
        """Some of them, by number or by a mask."""
        return Pictures(self.pixels[chosen], self.classes[chosen], self.clusters[chosen], self.count)

    def clustered(self, clusters: npt.NDArray[np.int64]) -> Pictures:
        """The same pictures in other clusters."""
        return Pictures(self.pixels, self.classes, clusters, self.count)

    def batch(self, seed: int, lane: int, round: int, step: int, batch: int) -> Tensor:
        """The rows of one inner step, packed: fp32, (batch, HEAD + 2 P)."""
        places = 4 + self._normals  # 32-bit draws of a row: two for the picture, one each for time and class, the noise
        key = struct.pack("<4Q", seed, lane, round, step)
        drawn = blake3(key, derive_key_context=DRAWS).digest(length=4 * places * batch)
        draws = np.frombuffer(drawn, "<u4").reshape(batch, places)
        which = (draws[:, 0].astype(np.uint64) << np.uint64(32) | draws[:, 1]) % np.uint64(len(self))
        classless = _unit(draws[:, 3]) < CLASSLESS
        classes = np.where(classless, self.count, self.classes[which])
        return _packed(classes, self.clusters[which], _unit(draws[:, 2]), self.pixels[which], self._noise(draws[:, 4:]))

    def validation(self) -> Tensor:
        """The same rows for everybody: each picture LOOKS times, at evenly spaced times, with its class."""
        which = np.repeat(np.arange(len(self)), LOOKS)
        times = (np.arange(len(which)) % LOOKS + 0.5) / LOOKS
        key = struct.pack("<3Q", *VALIDATION)
        drawn = blake3(key, derive_key_context=DRAWS).digest(length=4 * len(which) * self._normals)
        noise = self._noise(np.frombuffer(drawn, "<u4").reshape(len(which), -1))
        return _packed(self.classes[which], self.clusters[which], times, self.pixels[which], noise)

    @property
    def _normals(self) -> int:
        """The number of draws for the noise of a picture: normal numbers are made in pairs."""
        pixels = int(self.pixels.shape[1])
        return pixels + pixels % 2

    def _noise(self, draws: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]:
        return _normal(draws)[:, : self.pixels.shape[1]]


def unpack(rows: Tensor) -> Rows:
    """The parts of packed rows (B, HEAD + 2 P)."""
    x0, noise = rows[:, HEAD:].chunk(2, dim=-1)
    return Rows(rows[:, 0].long(), rows[:, 1].long(), rows[:, 2], x0, noise)


def _unit(draws: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]:
    """Uniform numbers in (0, 1), without the ends."""
    unit: npt.NDArray[np.float64] = (draws + 0.5) / 2**32
    return unit


def _normal(draws: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]:
    """Normal numbers (B, P) from as many draws, P even."""
    one, other = np.split(_unit(draws), 2, axis=1)
    far, angle = np.sqrt(-2 * np.log(one)), 2 * np.pi * other
    return np.concatenate((far * np.cos(angle), far * np.sin(angle)), axis=1)


def _packed(*columns: npt.NDArray[Any]) -> Tensor:
    parts = [each.reshape(len(each), -1).astype(np.float32) for each in columns]
    packed: Tensor = torch.from_numpy(np.concatenate(parts, axis=1))
    return packed


def samples() -> tuple[list[Text], npt.NDArray[np.int64]]:
    """All pictures as texts of their pixels' bytes, and their classes, (n,). LocalError without scikit-learn."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise LocalError(
            f"the digits come with scikit-learn: install it with {install_command('digits')}", code="package-missing"
        ) from error
    found = load_digits()
    rows = found.data.astype(np.uint8)
    return [Text(f"digits/{number}", row.tobytes()) for number, row in enumerate(rows)], found.target.astype(np.int64)


def digits(cluster: ClusterSpec | None = None, file: Path | None = None) -> tuple[Pictures, Pictures, Digest]:
    """The training pictures, the held-out ones, and the digest of all; LocalError if one of the two sets is empty.

    Both are those of the cluster with `cluster.number`, or of all clusters; `file` is the partition's, if it has one.
    """
    every, classes = samples()
    groups = np.zeros_like(classes) if cluster is None else np.array(groups_of(every, cluster.groups, file), np.int64)
    pictures = Pictures(_pixels(every), classes, groups, CLASSES)
    held = np.array([_fraction(each.content) < HELD_OUT for each in every])
    ours = np.ones_like(held) if cluster is None or cluster.number is None else groups == cluster.number
    if not (ours & held).any() or not (ours & ~held).any():
        raise LocalError(
            "the part is empty: none of the digits is of its cluster, or none of them is held out", code="data-empty"
        )
    name = digest("corpus", *(each.content for each in every), classes.tobytes())
    return pictures.only(ours & ~held), pictures.only(ours & held), name


def _pixels(every: Sequence[Text]) -> npt.NDArray[np.float32]:
    """The pixels, (n, 64), from -1 to 1."""
    grey = np.stack([np.frombuffer(each.content, np.uint8) for each in every])
    return (grey / (BRIGHTEST / 2) - 1).astype(np.float32)


def _fraction(content: bytes) -> float:
    """A hash of the picture as a number in [0, 1)."""
    return int.from_bytes(blake3(content).digest()[:6], "little") / 2**48
