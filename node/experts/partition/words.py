"""Texts as points: how often which words are in them, tf-idf, so that texts on one subject lie near each other.

Words are hashed into a fixed number of columns, so no vocabulary has to be agreed on; the weight of a column falls
with the share of texts that have it: idf = log((1 + n) / (1 + n_w)) + 1. Rows have length 1. The weights go with the
centres: a text that comes later is weighed by those of the texts that were clustered.

All of it in whole numbers, steps of 1 / FINE: sums are exact then, in whatever order a machine makes them; a root and a
division are rounded in one way only (IEEE 754); and the logarithm of a count lies nowhere so near to half a step that
libraries could differ. So a text is the same point everywhere.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from zlib import crc32

import numpy as np
import numpy.typing as npt

from shoal.node.experts.partition.clusters import Points

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
