"""What a reduction has so far: the mean of each chunk, once it is here. Provisional until PREPARE names its hash."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import Digest, PeerId, result_hash
from shoal.protocol.base.wire import Payload
from shoal.protocol.messages.rounds import ChunkRef
from shoal.protocol.rounds.allreduce.shelf import Shelf


@dataclass(frozen=True, slots=True)
class Result:
    """A chunk's mean, as its owner encoded it."""

    mask: bytes
    payload: Payload
    hash: Digest


class Results:
    """One per chunk; the bytes lie on the shelf too, where they are found by hash."""

    def __init__(self, chunks: int, shelf: Shelf) -> None:
        self._results: list[Result | None] = [None] * chunks
        self._shelf = shelf
        self.count = 0  # how many are here

    def __getitem__(self, chunk: int) -> Result | None:
        return self._results[chunk]

    def __iter__(self) -> Iterator[Result | None]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    @property
    def is_complete(self) -> bool:
        """Whether all are."""
        return self.count == len(self._results)

    def unfinished(self) -> list[int]:
        """Chunks whose mean is not here."""
        return [chunk for chunk, result in enumerate(self._results) if result is None]

    def keep(self, chunk: int, mask: bytes, payload: Payload) -> None:
        """A chunk's mean is here."""
        self.count += self._results[chunk] is None
        result = self._results[chunk] = Result(mask, payload, result_hash(mask, payload))
        self._shelf.put(chunk, result.hash, mask, payload)

    def references(self) -> tuple[ChunkRef, ...]:
        """The complete result, as PREPARE names it."""
        return tuple(ChunkRef(result.hash, result.mask) for result in self._results if result is not None)


class Offers:
    """What members say they hold of the chunks that we inherited: one hash each, so nobody can make us fetch for ever.

    Only bytes with such a hash are a result of this reduction; those of an earlier attempt, however late, are not.
    """

    def __init__(self) -> None:
        self._hashes: dict[int, dict[PeerId, Digest]] = {}
        self._sources: dict[int, PeerId] = {}  # who was asked for the bytes

    def note(self, sender: PeerId, chunk: int, hash: Digest) -> None:
        """`sender` holds a result; RemoteError if it has named another before."""
        if self._hashes.setdefault(chunk, {}).setdefault(sender, hash) != hash:
            raise RemoteError(f"offers two results for chunk {chunk}", sender)

    def source(self, chunk: int) -> PeerId | None:
        """Who was asked for the bytes of a chunk."""
        return self._sources.get(chunk)

    def choose(self, chunk: int, holder: PeerId, lost: Collection[PeerId]) -> bool:
        """Whether to ask `holder`: one at a time, and another only when that one is lost."""
        if self._sources.get(chunk, holder) != holder and self._sources[chunk] not in lost:
            return False
        self._sources[chunk] = holder
        return True

    def include(self, chunk: int, mask: bytes, payload: Payload) -> bool:
        """Whether somebody has offered these bytes."""
        return result_hash(mask, payload) in self._hashes.get(chunk, {}).values()
