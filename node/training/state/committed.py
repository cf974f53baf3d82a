"""The committed state of a run, as this peer holds it: the current version and the one before.

A version is never changed. A commit is applied into the buffers of the previous version, or into new ones if a lease
pins that version, which then lives until the lease is released. So two sets of buffers are enough while nobody copies
the state, and an apply that fails leaves the current version intact. The root is computed from the written bytes, read
back. Chunks that a fragment's round does not touch keep their hashes, and are only copied if the buffers do not have
them already. `apply`, `install` and writing a file take long and may run in a thread, one at a time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from shoal.node.ipc.shm import FloatArray
from shoal.node.training.methods.fragments import Fragment
from shoal.node.training.methods.method import PARAMETERS
from shoal.node.training.state.shape import StateShape
from shoal.protocol.base.errors import LocalError, RemoteError
from shoal.protocol.base.ids import Digest, content_hash, short
from shoal.protocol.base.wire import Payload

Vectors = Mapping[str, Tensor]
Ranges = Sequence[tuple[int, int]]  # half-open, of a vector's numbers
Rule = Callable[[Vectors, Tensor, int], Vectors]
"""An outer step on a block: from a block of all vectors, the mean of its contributions, and where the block starts in
the part, to the next block of all vectors; elementwise."""
HASH_THREADS = min(4, os.cpu_count() or 1)  # enough for BLAKE3 to reach the speed of memory
BLOCK = 1 << 16  # numbers: an outer step uses seven such blocks, and is five times slower if they exceed the cache
HASH_ALONE_BELOW = 8 << 20  # bytes: below this, threads cost more than they gain


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """One version of the state. Its vectors are only valid while it is current or leased."""

    shape: StateShape
    round: int  # the round that made it; 0: the initial state
    vectors: Vectors
    chunk_hashes: tuple[Digest, ...]
    root: Digest

    def chunk(self, index: int) -> memoryview:
        """The bytes of one chunk, not a copy."""
        return chunk_bytes(self.shape, self.vectors, index).toreadonly()

    def array(self, vector: str = PARAMETERS) -> FloatArray:
        """One of the vectors as numpy's array, not a copy; it must not be changed."""
        array: FloatArray = self.vectors[vector].numpy()
        return array


class Lease:
    """Pins a snapshot until `release`, or the end of a `with` block."""

    def __init__(self, state: CommittedState, snapshot: Snapshot) -> None:
        self._state = state
        self.snapshot = snapshot

    def release(self) -> None:
        """Releases the snapshot; a second call is harmless."""
        self._state._release(self)

    def __enter__(self) -> Snapshot:
        return self.snapshot

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class CommittedState:
    """Holds the `current` and the `previous` version, and makes the next one from what a round has committed."""

    def __init__(self, shape: StateShape, given: Vectors | None = None, round: int = 0) -> None:
        """Copies the vectors, LocalError if they are not those of `shape`; without any, see `_zeros`."""
        self.shape = shape
        self.current = _zeros(shape) if given is None else read_back(shape, round, _copied(shape, given))
        self.previous: Snapshot | None = None
        self._whole: Ranges = ((0, shape.layout.size),)
        self._changed: Ranges = self._whole  # where the previous and the current version differ
        self._leases: list[Lease] = []
        self._lock = threading.Lock()  # leases are taken while a thread applies

    @classmethod
    def of_weights(cls, shape: StateShape, weights: Tensor, round: int) -> CommittedState:
        """The state after a round with these weights, (d,), and all other vectors 0."""
        nothing = torch.zeros_like(weights)
        return cls(shape, {name: weights if name == PARAMETERS else nothing for name in shape.vectors}, round)

    def apply(self, mean: Iterable[Tensor], rule: Rule, fragment: Fragment | None = None) -> Snapshot:
        """Applies `rule` to the mean of the next round, which comes in pieces; returns the new current version.

        With a `fragment` the mean has only its numbers, and the others stay. Each piece is used before the next is
        requested. Raises LocalError, and `current` stays, if the pieces together are not one vector.
        """
        old, (new, stale) = self.current.vectors, self._spare_vectors()
        ranges = self._whole
        if fragment is not None:
            ranges = fragment.ranges
            for begin, end in stale:
                for name, vector in new.items():
                    vector[begin:end] = old[name][begin:end]
        start = 0
        for block, piece in _blocks(ranges, mean):
            made = rule({name: vector[block] for name, vector in old.items()}, piece, start)
            start += piece.shape[-1]
            for name, vector in new.items():
                vector[block] = made[name]
        return self._publish(_read_again(self.current, new, ranges), ranges)

    def skip(self, round: int) -> Snapshot:
        """Makes the current version that of `round` as well, as the rounds up to it have changed nothing."""
        with self._lock:
            if round > self.current.round:
                self.current = replace(self.current, round=round)
            return self.current

    def back_to(self, round: int) -> None:
        """Makes the current version that of `round`, as what later ones have brought is made anew."""
        with self._lock:
            if round < self.current.round:
                self.current = replace(self.current, round=round)

    def install(self, round: int, chunks: Iterable[Payload], expected_root: Digest) -> Snapshot:
        """Installs a version from its chunks, in order; RemoteError, and `current` stays, if the root is another."""
        new, _ = self._spare_vectors()
        received = 0
        for index, payload in enumerate(chunks):
            if index >= len(self.shape.chunks) or len(payload) != self.shape.chunks[index].size:
                raise RemoteError(f"chunk {index} of {len(payload)} bytes is not one of this state")
            chunk_bytes(self.shape, new, index)[:] = payload
            received += 1
        if received != len(self.shape.chunks):
            raise RemoteError(f"the state has {len(self.shape.chunks)} chunks, not {received}")
        snapshot = read_back(self.shape, round, new)
        if snapshot.root != expected_root:
            raise RemoteError(f"the state's root is {short(snapshot.root)}, not {short(expected_root)}")
        return self._publish(snapshot, self._whole)

    def adopt(self, snapshot: Snapshot) -> None:
        """Make a version from elsewhere, whose memory is ours from now on, the current one."""
        self._publish(snapshot, self._whole)

    def versions(self) -> list[Snapshot]:
        """The previous version, if it is still here, and the current one."""
        with self._lock:
            return [each for each in (self.previous, self.current) if each is not None]

    def lease(self, root: Digest | None = None) -> Lease:
        """Pins the version with `root`, by default the current one; LocalError if it is not here any more."""
        with self._lock:
            held = [self.current, self.previous, *(lease.snapshot for lease in self._leases)]
            for snapshot in held:
                if snapshot and root in (None, snapshot.root):
                    lease = Lease(self, snapshot)
                    self._leases.append(lease)
                    return lease
        raise LocalError(f"state {short(root or b'')} is not held any more", code="state-gone")

    def _release(self, lease: Lease) -> None:
        with self._lock:
            if lease in self._leases:
                self._leases.remove(lease)

    def _spare_vectors(self) -> tuple[Vectors, Ranges]:
        """Buffers that nobody reads, and where they differ from the current version.

        They are the buffers of the previous version, which is dropped by this, or new ones.
        """
        with self._lock:
            spare, self.previous = self.previous, None
            if spare and all(lease.snapshot.vectors is not spare.vectors for lease in self._leases):
                return spare.vectors, self._changed
        return empty_vectors(self.shape), self._whole

    def _publish(self, snapshot: Snapshot, changed: Ranges) -> Snapshot:
        with self._lock:
            self.previous, self.current, self._changed = self.current, snapshot, changed
        return snapshot


def read_back(shape: StateShape, round: int, vectors: Vectors) -> Snapshot:
    """The version in `vectors`, hashed from memory."""
    hashes = _hash_all([chunk_bytes(shape, vectors, index) for index in range(len(shape.chunks))])
    return Snapshot(shape, round, vectors, hashes, shape.root(hashes))


def _read_again(before: Snapshot, vectors: Vectors, changed: Ranges) -> Snapshot:
    """The version after `before`, in which only the numbers in `changed` differ: only their chunks are hashed."""
    shape, hashes = before.shape, list(before.chunk_hashes)
    touched = shape.touched(changed)
    fresh = _hash_all([chunk_bytes(shape, vectors, index) for index in touched])
    for index, each in zip(touched, fresh, strict=True):
        hashes[index] = each
    return Snapshot(shape, before.round + 1, vectors, tuple(hashes), shape.root(hashes))


def chunk_bytes(shape: StateShape, vectors: Vectors, index: int) -> memoryview:
    """The bytes of one chunk of `vectors`, not a copy."""
    chunk = shape.chunks[index]
    return vectors[chunk.vector][chunk.start : chunk.stop].numpy().data.cast("B")


def _hash_all(payloads: Sequence[memoryview]) -> tuple[Digest, ...]:
    """The hash of each payload, by several threads, as hashing releases the GIL."""
    if sum(map(len, payloads)) < HASH_ALONE_BELOW:
        return tuple(map(content_hash, payloads))
    share = -(-len(payloads) // HASH_THREADS)
    parts = [payloads[start : start + share] for start in range(0, len(payloads), share)]
    with ThreadPoolExecutor(HASH_THREADS) as pool:
        hashed = pool.map(lambda part: [content_hash(payload) for payload in part], parts)
        return tuple(each for part in hashed for each in part)


def _zeros(shape: StateShape) -> Snapshot:
    """What is held before the first download: zeros, which take neither time nor, until they are written, memory."""
    vectors = {name: torch.from_numpy(np.zeros(shape.layout.size, np.float32)) for name in shape.vectors}
    hashes = {size: content_hash(bytes(size)) for size in {chunk.size for chunk in shape.chunks}}
    chunk_hashes = tuple(hashes[chunk.size] for chunk in shape.chunks)
    return Snapshot(shape, 0, vectors, chunk_hashes, shape.root(chunk_hashes))


def _copied(shape: StateShape, given: Vectors) -> Vectors:
    """The same numbers, in memory of our own."""
    vectors = empty_vectors(shape)
    if given.keys() != vectors.keys():
        raise LocalError(f"expected the vectors {', '.join(vectors)}, got {', '.join(given)}", code="bug")
    for name, vector in vectors.items():
        vector.copy_(_checked(shape, given[name]))
    return vectors


def empty_vectors(shape: StateShape) -> dict[str, Tensor]:
    """Memory for a version."""
    return {name: torch.empty(shape.layout.size) for name in shape.vectors}


def _blocks(ranges: Ranges, pieces: Iterable[Tensor]) -> Iterator[tuple[slice, Tensor]]:
    """Cuts `pieces`, (..., k), into blocks that fit the cache, each with its place; together they cover `ranges`.

    Raises LocalError if they have more or fewer numbers.
    """
    size, done, left = sum(stop - start for start, stop in ranges), 0, list(reversed(ranges))
    for piece in pieces:
        done += piece.shape[-1]
        if piece.dtype != torch.float32 or done > size:
            raise LocalError(f"expected {size} fp32 numbers, got more, or {piece.dtype}", code="bug")
        while piece.shape[-1]:
            start, stop = left.pop()
            end = min(stop, start + piece.shape[-1], start + BLOCK)
            yield slice(start, end), piece[..., : end - start]
            piece = piece[..., end - start :]
            if end < stop:
                left.append((end, stop))
    if done != size:
        raise LocalError(f"expected {size} fp32 numbers, got {done}", code="bug")


def _checked(shape: StateShape, vector: Tensor) -> Tensor:
    if vector.dtype != torch.float32 or vector.shape != (shape.layout.size,) or vector.device.type != "cpu":
        raise LocalError(f"expected {shape.layout.size} fp32 numbers on the CPU, got {vector.shape}", code="bug")
    return vector
