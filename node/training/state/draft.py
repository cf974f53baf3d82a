"""A version of the state while it is downloaded.

A chunk is copied to its place at once, so that no more memory is held than the state itself and what is on its way. A
thread then hashes it as it lies in memory, and appends it to the file from which a later process takes it. When the
last chunk has come, nothing is left to be done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from shoal.node.base.pools import DOWNLOADS
from shoal.node.training.state.chunk_file import ChunkFile
from shoal.node.training.state.committed import Snapshot, chunk_bytes, empty_vectors
from shoal.node.training.state.shape import StateShape
from shoal.protocol.base.errors import RemoteError, Shortage
from shoal.protocol.base.ids import Digest, content_hash
from shoal.protocol.base.wire import Payload


class Draft:
    """One such version; `layout` and `hashes` are what its root was computed from."""

    def __init__(self, shape: StateShape, round: int, layout: bytes, hashes: Sequence[Digest], file: ChunkFile) -> None:
        self.round, self.hashes = round, tuple(hashes)
        self._shape, self._layout, self._file = shape, layout, file
        self._vectors = empty_vectors(shape)
        self._right: set[int] = set()  # chunks that were read back from memory
        self._loads: dict[int, Future[None]] = {}  # of chunks that the file has
        self._work: list[Future[None]] = []
        self._is_taken = False
        self._fits = layout == shape.header and len(hashes) == len(shape.chunks)
        known = [index for index, each in enumerate(hashes) if file.has(each)] if self._fits else []
        if not known:
            self._begin(file.remove)
        self._begin(partial(file.begin, sum(chunk.size for chunk in shape.chunks)))
        for index in known:
            self._loads[index] = self._begin(partial(self._load, index))
        self.here = set(known)  # chunks that have come, now or to the file

    def put(self, index: int, payload: Payload) -> None:
        """Take a chunk, whose hash has been checked; that the version is not of our shape shows in `snapshot`."""
        if self._fits:
            chunk_bytes(self._shape, self._vectors, index)[:] = payload
        self.here.add(index)
        if self._fits:
            self._begin(partial(self._read_back, index))

    def chunk(self, index: int) -> bytes:
        """A copy of a chunk's bytes; none if it is not here, or the version is not ours to read any more.

        Called in any thread; it waits for a chunk that is yet to be read from the file.
        """
        if (load := self._loads.get(index)) is not None:
            load.result()
        is_here = index in self._right or (index in self.here and load is None and self._fits)
        held = bytes(chunk_bytes(self._shape, self._vectors, index)) if is_here else b""
        return b"" if self._is_taken else held  # looked at last: from then on the bytes may change

    def snapshot(self) -> Snapshot:
        """The whole version, once all is read back; RemoteError if it is not one of this run's shape.

        Shortage if chunks of an earlier process cannot be read again: the run is opened anew, and gets them again.
        """
        for each in self._work:
            each.result()
        if self._fits and len(self._right) < len(self.hashes):
            raise Shortage(
                f"what was kept of the state of round {self.round} cannot be read again: it is downloaded anew",
                code="checkpoint-damaged",
            )
        if not self._fits:
            raise RemoteError(f"the state of round {self.round} is not of the shape of this run's")
        return Snapshot(self._shape, self.round, self._vectors, self.hashes, self._shape.root(self.hashes))

    def is_of(self, round: int, layout: bytes, hashes: Sequence[Digest]) -> bool:
        """Whether it is that version."""
        return (self.round, self._layout, self.hashes) == (round, layout, tuple(hashes))

    def drop(self) -> None:
        """Serve no chunk any more, and keep none on disk."""
        self._is_taken = True
        self._begin(self._file.remove)

    def _begin(self, work: Callable[[], None]) -> Future[None]:
        self._work.append(DOWNLOADS.begin(work))
        return self._work[-1]

    def _load(self, index: int) -> None:
        self._file.load(self.hashes[index], chunk_bytes(self._shape, self._vectors, index))
        self._read_back(index)

    def _read_back(self, index: int) -> None:
        held = chunk_bytes(self._shape, self._vectors, index)
        if content_hash(held) != self.hashes[index]:
            return
        if not self._is_taken:  # with the last chunk here a file is of no use
            self._file.append(self.hashes[index], held)
        self._right.add(index)
