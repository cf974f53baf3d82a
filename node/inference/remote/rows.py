"""Rows of log-probabilities as bytes: exact where the vocabulary is small, else in steps of 1/1024 nat.

Rules:
- Up to EXACT tokens a row is fp32, little-endian. Beyond, each number is 16 bits: how many steps it lies below zero. So
  its error is at most half a step, 0.05 % of a probability, at any size (an fp16 of -10 errs by eight times as much);
  what is less probable than e^-64 is sent as e^-64.
- A row that is not a distribution is the sender's fault: with a sum above 1 it would get more weight than it deserves.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.node.inference.scorer import LogProbs
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId

EXACT = 1024  # tokens of a vocabulary
STEPS = 1024  # in a nat
LEAST = -65535 / STEPS  # nats
TOLERANCE = 0.01  # by which the sum of a row's probabilities may miss 1
MOST_ROWS = 1 << 20  # bytes in one answer: what is longer keeps other words to that peer waiting


def row_bytes(vocab: int) -> int:
    """Of one row."""
    return vocab * (4 if vocab <= EXACT else 2)


def rows_fit(count: int, vocab: int) -> bool:
    """Whether so many rows may be in one answer; a single one always may."""
    return count <= 1 or count * row_bytes(vocab) <= MOST_ROWS


def pack(rows: LogProbs) -> bytes:
    """Rows (n, V) without NaN."""
    if rows.shape[1] <= EXACT:
        return np.ascontiguousarray(rows, "<f4").tobytes()
    return np.rint(np.clip(rows, LEAST, 0) * -STEPS).astype("<u2").tobytes()


def unpack(data: bytes, count: int, vocab: int, sender: PeerId) -> LogProbs:
    """The rows (count, vocab) in `data`; RemoteError unless each is a distribution."""
    if len(data) != count * row_bytes(vocab):
        raise RemoteError(f"gave {len(data)} bytes for {count} rows of {vocab} log-probabilities", sender)
    read: np.ndarray[Any, Any] = np.frombuffer(data, "<f4" if vocab <= EXACT else "<u2").reshape(count, vocab)
    rows: LogProbs = read.astype(np.float32)
    if vocab > EXACT:
        rows /= -STEPS
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.exp(rows).sum(axis=1, dtype=np.float64)
    if not (np.abs(sums - 1) <= TOLERANCE).all():
        raise RemoteError(f"gave probabilities that sum to {sums[np.argmax(np.abs(sums - 1))]:.3g}", sender)
    return rows
