"""Encodes rows of log-probabilities as bytes: exactly for small vocabularies, otherwise in steps of 1/1024 nat.

Rules:
- Up to EXACT tokens a row is fp32, little-endian. For larger vocabularies each number is 16 bits: how many steps it is
  below zero. Its error is at most half a step, or 0.05 % of a probability, whatever its size (fp16 at -10 has eight
  times that error); probabilities below e^-64 are sent as e^-64.
- A row that is not a distribution is the sender's fault: with a sum above 1 it would get more weight than it should.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.node.inference.scorer import LogProbs
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId

EXACT = 1024  # tokens of the largest vocabulary that is encoded exactly
STEPS = 1024  # per nat
LEAST = -65535 / STEPS  # nats
TOLERANCE = 0.01  # how far the sum of a row's probabilities may be from 1
MOST_ROWS = 1 << 20  # bytes of rows in one answer: longer ones would delay other messages to that peer


def row_bytes(vocab: int) -> int:
    """The bytes of one row."""
    return vocab * (4 if vocab <= EXACT else 2)


def rows_fit(count: int, vocab: int) -> bool:
    """Whether `count` rows may be in one answer; a single row always may."""
    return count <= 1 or count * row_bytes(vocab) <= MOST_ROWS


def pack(rows: LogProbs) -> bytes:
    """Encode rows (n, V), which must be free of NaN."""
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
