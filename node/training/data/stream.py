"""A text dataset of Hugging Face's hub that is read during training, for datasets that are too large to download.

- Each lane reads the files in its own order, a permutation that follows from (run seed, lane, round in which the
  reading began), so a member that comes back begins elsewhere. Within a file rows come in order. If there is only one
  file, its rows are divided among LANES lanes, by the row's number.
- Whether a row is held out for validation follows from the hash of its text, so all members agree.
- The texts are joined, each with an end of text, and cut into adjacent windows. The position is not saved: a worker
  that starts again begins elsewhere. So a repeated step may see other tokens, unlike with `files`.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from blake3 import blake3
from torch import Tensor

from shoal.node.training.data.tables import text_of
from shoal.protocol.base.errors import LocalError

LANES = 16  # that the rows of a single file are divided among
HELD_OUT = 0.05  # share of the rows that validate
VALIDATION_ROWS = 1000  # first rows, among which those that are held out become the validation text
Encode = Callable[[str], Tensor]


class Stream:
    """One worker's reader; `opened` is an IterableDataset of `datasets`, `encode` tokenizes a text."""

    def __init__(self, opened: Any, column: str, encode: Encode) -> None:
        self._opened, self._column, self._encode = opened, column, encode
        self._lane = -1
        self._texts: Iterator[str] = iter(())
        self._rest = torch.empty(0, dtype=torch.int32)

    def batch(self, seed: int, lane: int, round: int, batch: int, context: int) -> Tensor:
        """The next int64 tokens of a lane, (batch, context + 1): inputs and, shifted by one, targets."""
        if lane != self._lane:
            self._lane, self._texts = lane, self._of_lane(seed, lane, round)
            self._rest = torch.empty(0, dtype=torch.int32)
        wanted = batch * context + 1
        parts, size = [self._rest], len(self._rest)
        while size < wanted:
            parts.append(self._encode(next(self._texts)))
            size += len(parts[-1])
        tokens = torch.cat(parts)
        self._rest = tokens[wanted - 1 :]
        return tokens[:wanted].unfold(0, context + 1, context).long()

    def validation(self) -> Tensor:
        """The int32 tokens of the held-out rows among the first VALIDATION_ROWS."""
        rows = islice(self._rows(self._opened), VALIDATION_ROWS)
        parts = [self._encode(text) for text in rows if is_held_out(text)]
        return torch.cat([torch.empty(0, dtype=torch.int32), *parts])

    def _of_lane(self, seed: int, lane: int, round: int) -> Iterator[str]:
        """An endless stream of a lane's texts; LocalError if there are none."""
        files = self._opened.num_shards
        order = list(range(files))
        key = blake3(struct.pack("<3Q", seed, lane, round), derive_key_context="shoal v1 stream files").digest()
        random.Random(key).shuffle(order)
        while True:
            found = 0
            for number in order:
                rows = self._rows(self._opened.shard(num_shards=files, index=number) if files > 1 else self._opened)
                for text in rows if files > 1 else islice(rows, lane % LANES, None, LANES):
                    if not is_held_out(text):
                        found += 1
                        yield text
            if not found:
                raise LocalError(
                    f"the stream has no text in its column {self._column!r} to train on", code="data-empty"
                )

    def _rows(self, opened: Any) -> Iterator[str]:
        for number, row in enumerate(opened, start=1):
            if self._column not in row:
                raise LocalError(
                    f"the stream has no column {self._column!r}, but {', '.join(row)}", code="data-unusable"
                )
            if text := text_of(row[self._column], self._column, f"row {number} of the stream"):
                yield text


def is_held_out(text: str) -> bool:
    """Whether a row is for validation."""
    return int.from_bytes(blake3(text.encode("utf-8", "replace")).digest()[:6], "little") / 2**48 < HELD_OUT
