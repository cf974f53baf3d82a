"""scikit-learn's digits: 1,797 real pictures of 8 x 8 grey pixels (the test part of UCI's "Optical Recognition of
Handwritten Digits"), as they are trained on. One in five is held out, chosen by the hash of its pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from shoal.node.dataset.chosen import groups_of
from shoal.node.dataset.texts import Text
from shoal.node.diffusion.pictures import Pictures
from shoal.node.experts.partition.spec import ClusterSpec
from shoal.node.spec.flow import DIGITS
from shoal.protocol.errors import LocalError
from shoal.protocol.ids import Digest, digest

HELD_OUT = 0.2  # of all pictures
CLASSES = DIGITS[1]
BRIGHTEST = 16  # a pixel is 0 to 16


def samples() -> tuple[list[Text], npt.NDArray[np.int64]]:
    """All pictures, by number, as their pixels' bytes; and their classes, (n,). LocalError without scikit-learn."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise LocalError("the digits come with scikit-learn: pip install 'shoal[digits]'") from error
    found = load_digits()
    rows = found.data.astype(np.uint8)
    return [Text(f"digits/{number}", row.tobytes()) for number, row in enumerate(rows)], found.target.astype(np.int64)


def digits(cluster: ClusterSpec | None = None, file: Path | None = None) -> tuple[Pictures, Pictures, Digest]:
    """What is trained on, what is held out, and the digest of all.

    Of one cluster, or of all in their clusters; `file` is the partition's, where it has one.
    """
    every, classes = samples()
    groups = np.zeros_like(classes) if cluster is None else np.array(groups_of(every, cluster.groups, file), np.int64)
    pictures = Pictures(_pixels(every), classes, groups, CLASSES)
    held = np.array([_fraction(each.content) < HELD_OUT for each in every])
    ours = np.ones_like(held) if cluster is None or cluster.number is None else groups == cluster.number
    if not (ours & held).any() or not (ours & ~held).any():
        raise LocalError("the part is empty: none of the digits is of its cluster, or none of them is held out")
    name = digest("corpus", *(each.content for each in every), classes.tobytes())
    return pictures.only(ours & ~held), pictures.only(ours & held), name


def _pixels(every: Sequence[Text]) -> npt.NDArray[np.float32]:
    """From -1 to 1, (n, 64)."""
    grey = np.stack([np.frombuffer(each.content, np.uint8) for each in every])
    return (grey / (BRIGHTEST / 2) - 1).astype(np.float32)


def _fraction(content: bytes) -> float:
    """A picture as a number in [0, 1)."""
    return int.from_bytes(blake3(content).digest()[:6], "little") / 2**48
