"""Texts as points: how often which words are in them, tf-idf, so that texts on one subject lie near each other.

Words are hashed into a fixed number of columns, so no vocabulary has to be agreed on; the weight of a column falls
with the share of texts that have it: idf = log((1 + n) / (1 + n_w)) + 1. Rows have length 1. The weights go with the
centres: a text that comes later is weighed by those of the texts that were clustered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from zlib import crc32

import numpy as np
import numpy.typing as npt

from shoal.node.experts.partition.clusters import Points

COLUMNS = 2048
WORD = re.compile(rb"[A-Za-z]{3,}")


def counts(texts: Sequence[bytes]) -> npt.NDArray[np.float64]:
    """How often each column's words are in each text, (n, COLUMNS)."""
    table = np.zeros((len(texts), COLUMNS))
    for row, text in zip(table, texts, strict=True):
        columns = [crc32(word.lower()) % COLUMNS for word in WORD.findall(text)]
        np.add.at(row, columns, 1.0)
    return table


def rarity(table: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """idf, (COLUMNS,), of counts."""
    texts_with = (table > 0).sum(0)
    weights: npt.NDArray[np.float64] = np.log((1 + len(table)) / (1 + texts_with)) + 1
    return weights


def weighed(table: npt.NDArray[np.float64], idf: npt.NDArray[np.float64]) -> Points:
    """tf-idf of counts, (n, COLUMNS), tf as 1 + log; rows of length 1, or of zeros for a text without words."""
    rows = np.where(table > 0, 1 + np.log(np.maximum(table, 1)), 0.0) * idf
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    points: Points = rows / np.where(lengths > 0, lengths, 1.0)
    return points
