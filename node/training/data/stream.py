"""A dataset of the hub as text, read while it is trained on, as it is too large to download.

Rules:
- Each lane reads files of its own. Their order is a permutation that follows from (run seed, lane, round in which the
  reading began), so that a member that comes back begins elsewhere; within a file rows come in order. If there is only
  one file, its rows are divided among LANES lanes, by the row's number.
- A row is held out for validation, or trained on, by the hash of its text: so all members agree, whoever reads it.
- The texts are joined, each with its end, and cut into windows side by side. What is read is not noted anywhere: a
  worker that dies begins again elsewhere. So the same step need not see the same tokens twice, unlike with `files`.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from blake3 import blake3
from torch import Tensor

from shoal.node.base import extra
from shoal.node.manifest.data import StreamSpec
from shoal.node.training.data.hub import not_had
from shoal.node.training.data.tables import text_of
from shoal.protocol.base.errors import LocalError

LANES = 16  # that the rows of a single file are dealt to
HELD_OUT = 0.05  # of all rows
HUB_DATASETS = "hf://datasets/"  # before a name: the hub's, whatever folder has that name here
LOOKED_AT = 1000  # rows in which those for validation are looked for
Encode = Callable[[str], Tensor]


class Stream:
    """One worker's reading; `opened` is an IterableDataset of the library, `encode` makes tokens of a text."""

    def __init__(self, opened: Any, column: str, encode: Encode) -> None:
        self._opened, self._column, self._encode = opened, column, encode
        self._lane = -1
        self._texts: Iterator[str] = iter(())
        self._rest = torch.empty(0, dtype=torch.int32)

    def batch(self, seed: int, lane: int, round: int, batch: int, context: int) -> Tensor:
        """The next tokens of a lane, (batch, context + 1): inputs and, shifted by one, targets."""
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
        """The tokens of the held-out rows among the first."""
        rows = islice(self._rows(self._opened), LOOKED_AT)
        parts = [self._encode(text) for text in rows if is_held_out(text)]
        return torch.cat([torch.empty(0, dtype=torch.int32), *parts])

    def _of_lane(self, seed: int, lane: int, round: int) -> Iterator[str]:
        """A lane's texts without end; LocalError if there are none."""
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
                raise LocalError(f"the stream has no text in its column {self._column!r} to train on")

    def _rows(self, opened: Any) -> Iterator[str]:
        for number, row in enumerate(opened, start=1):
            if self._column not in row:
                raise LocalError(f"the stream has no column {self._column!r}, but {', '.join(row)}")
            if text := text_of(row[self._column], self._column, f"row {number} of the stream"):
                yield text


def is_held_out(text: str) -> bool:
    """Whether a row is for validation."""
    return int.from_bytes(blake3(text.encode("utf-8", "replace")).digest()[:6], "little") / 2**48 < HELD_OUT


def _check_files(spec: StreamSpec, files: Mapping[str, Sequence[str]] | None) -> None:
    """LocalError unless all are the dataset's own: its card may name any path, on this machine too."""
    begin = f"{HUB_DATASETS}{spec.dataset}@"
    named = [str(each) for several in (files or {}).values() for each in several]
    foreign = [each for each in named if not each.startswith(begin) or "::" in each]
    if foreign or not named:
        what = f"names the file {foreign[0]}, which is not its own" if foreign else "names no files"
        raise LocalError(f"cannot stream {spec.dataset}: its card {what}")


def open_stream(spec: StreamSpec) -> Any:
    """The dataset as the library streams it, at the manifest's commit; LocalError if it cannot be had.

    A stranger has named it, so only what is public is read: no folder of this machine, and without its owner's login.
    """
    try:
        builder = extra.datasets().load_dataset_builder(
            HUB_DATASETS + spec.dataset, spec.subset or None, revision=spec.revision, token=False
        )
        _check_files(spec, builder.config.data_files)
        return builder.as_streaming_dataset(split=spec.split)
    except LocalError:
        raise
    except Exception as error:  # of the network, the hub, its files
        raise not_had(f"cannot stream {spec.dataset}", error) from error
