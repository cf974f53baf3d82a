"""A run's committed state and its arithmetic in the daemon: initialising, encoding, reducing, applying and serving.

All of it runs on the CPU in fp32, so every member computes the same bits from the same committed bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from shoal.node.ipc.messages import Range
from shoal.node.ipc.shm import FloatArray
from shoal.node.ipc.vectors import Sizes
from shoal.node.manifest.manifest import Manifest
from shoal.node.training.methods.method import Answer, Vectors
from shoal.node.training.methods.registry import method_of
from shoal.node.training.methods.timetable import Timetable
from shoal.node.training.models import registry
from shoal.node.training.state.chunk_file import ChunkFile
from shoal.node.training.state.committed import CommittedState, Lease, Snapshot
from shoal.node.training.state.draft import Draft
from shoal.node.training.state.shape import shape_of
from shoal.protocol.averaging.chunks import chunk_bounds, fitting_bytes
from shoal.protocol.averaging.events import Committed
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import Digest
from shoal.protocol.base.wire import Payload
from shoal.protocol.tensors.compression import codec
from shoal.protocol.tensors.memory import MEMORY
from shoal.protocol.tensors.reduction import MeanReducer


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a worker is told about a committed round."""

    members: int  # how many contributions are in it
    missed: tuple[Range, ...]  # numbers of the round's part in which our own contribution is not counted


class HeldState:
    """The state of one run on this node, whoever agrees on it: what the worker trains from, and how it is cut."""

    def __init__(self, manifest: Manifest, saved: CommittedState | None = None) -> None:
        """Begins with a saved state, or that of the manifest's seed, which is the same on every machine.

        Without either, in a run that goes on from an origin, it holds zeros until a state has been downloaded.
        """
        torch.set_num_threads(1)  # the worker has the cores
        self.committed = saved or _initial(manifest)
        layout = self.committed.shape.layout
        self.method = method_of(manifest, layout)
        self.timetable = Timetable(self.method)
        self.elements = layout.size
        self.answers: dict[int, FloatArray] = {}  # the means of the last two rounds, if the worker's method uses them
        self._scatter, self._gather = codec(manifest.codec.scatter), codec(manifest.codec.gather)
        self._bounds = {part: self._cut(manifest, self._size(part)) for part in self.timetable.parts}

    @property
    def root(self) -> Digest:
        """The root of the current version, computed from memory."""
        return self.committed.current.root

    @property
    def sizes(self) -> Sizes:
        """The sizes of the vectors that the worker shares with this node."""
        method = self.method
        return Sizes(self.elements, len(method.reads), len(method.keeps), int(method.merges_answers))

    def lease(self, round: int | None = None) -> Lease:
        """Pins the version of `round` if it is still here, else the current one."""
        for snapshot in self.committed.versions():
            if snapshot.round == round:
                with suppress(LocalError):  # a commit may have taken its place meanwhile
                    return self.committed.lease(snapshot.root)
        return self.committed.lease()

    def bounds(self, round: int) -> Sequence[tuple[int, int]]:
        """The half-open ranges of the chunks of a round's contributions."""
        return self._bounds[self.timetable.part(round)]

    def _size(self, part: int) -> int:
        fragment = self.method.fragment(part)
        return self.elements if fragment is None else fragment.size

    def _cut(self, manifest: Manifest, size: int) -> Sequence[tuple[int, int]]:
        block = max(self._scatter.block, self._gather.block)
        chunk_bytes = manifest.rounds.chunk_bytes or fitting_bytes(size, self._scatter.bytes_for)
        return chunk_bounds(size, chunk_bytes, block)


class OuterState(HeldState):
    """The state that all members agree on. `apply` and `install` take long: call them in a thread, one at a time."""

    def __init__(self, manifest: Manifest, saved: CommittedState | None = None, trains: bool = True) -> None:
        """Means are only kept for the worker if this node `trains`."""
        super().__init__(manifest, saved)
        self._keeps_answers = trains and self.method.merges_answers

    @property
    def chunks(self) -> tuple[int, ...]:
        """How many chunks the reductions of one period have, from round 1 on; later rounds repeat them."""
        return tuple(len(self._bounds[part]) for part in self.timetable.parts)

    def outcome(self, event: Committed) -> Outcome:
        """What the worker is told about a committed round."""
        decision = event.decision
        chunks = zip(self.bounds(decision.round), event.counted, strict=True)
        missed = _joined(bound for bound, was in chunks if not was)
        return Outcome(max(made.count for made in decision.means), tuple(Range(*each) for each in missed))

    def reducer(self, round: int) -> MeanReducer:
        """The reducer with which an owner averages its chunks of a round."""
        return MeanReducer([stop - start for start, stop in self.bounds(round)], self._scatter, self._gather)

    def encoder(self, vector: FloatArray, round: int) -> Callable[[int], Payload]:
        """A function that encodes a chunk of a contribution on demand; `vector` is finite, and must not be changed."""
        flat, bounds, scatter = torch.from_numpy(vector), self.bounds(round), self._scatter

        def encode(chunk: int) -> Payload:  # holds no reference to this object, which sending may outlast
            return scatter.encode_view(flat[slice(*bounds[chunk])])

        return encode

    def apply(self, payloads: Sequence[Payload]) -> Snapshot:
        """Applies the committed mean of the next round; returns the new current version."""
        round = self.committed.current.round + 1
        part = self.timetable.part(round)
        MEMORY.trim()  # gives memory for averaging back while the worker trains

        def rule(agreed: Vectors, mean: Tensor, start: int) -> Vectors:
            return self.method.apply(part, agreed, Answer(mean, 1, number=round, start=start))

        mean = self._decoded(payloads, round)
        if self._keeps_answers:
            mean = self._kept(mean, round)
        return self.committed.apply(mean, rule, self.method.fragment(part))

    def _decoded(self, payloads: Sequence[Payload], round: int) -> Iterator[Tensor]:
        """A mean, chunk by chunk, to save memory; each chunk is valid until the next."""
        sizes = [stop - start for start, stop in self.bounds(round)]
        room = torch.empty(max(sizes))
        for size, payload in zip(sizes, payloads, strict=True):
            yield self._gather.decode(payload, size, room[:size])

    def _kept(self, mean: Iterator[Tensor], round: int) -> Iterator[Tensor]:
        """Passes the chunks on, and keeps the whole mean in `answers` at the end."""
        answer, done = torch.empty(self.elements), 0
        for piece in mean:
            answer[done : done + len(piece)] = piece
            done += len(piece)
            yield piece
        self.answers = {kept: value for kept, value in self.answers.items() if kept == round - 1}
        self.answers[round] = answer.numpy()


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges with adjacent ones joined. An owner's chunks are adjacent, so few ranges are left."""
    joined: list[tuple[int, int]] = []
    for start, stop in ranges:
        if joined and joined[-1][1] == start:
            start = joined.pop()[0]
        joined.append((start, stop))
    return joined


def _initial(manifest: Manifest) -> CommittedState:
    layout = registry.layout_of(manifest.model)
    weights = registry.initial(manifest) if manifest.origin is None else None
    if weights is None:  # the state that the run begins with is on its founder's disk, and is downloaded
        return CommittedState(shape_of(manifest, layout))
    agreed, _ = method_of(manifest, layout).begin(weights)
    return CommittedState(shape_of(manifest, layout), agreed)


class StateStore:
    """The versions that state transfer serves, and the one that it gets.

    Served are the current one, the one before, those that joiners have pinned, and what is here of one that is being
    downloaded.
    """

    def __init__(self, committed: CommittedState, file: Path | None = None) -> None:
        """Chunks that are downloaded are kept in `file` until all have come; an earlier process may have left some."""
        self._committed = committed
        self._leases: dict[int, Lease] = {}
        self._path = file
        self._file = ChunkFile(file).read() if file is not None else None
        self._draft: Draft | None = None

    @property
    def size(self) -> int:
        """Bytes of a version."""
        return sum(chunk.size for chunk in self._committed.shape.chunks)

    def versions(self) -> list[int]:
        """Rounds whose state is here, oldest first."""
        return sorted(self._held())

    def describe(self, round: int) -> tuple[bytes, tuple[Digest, ...]] | None:
        """Layout and chunk hashes of a version; None if it is gone: a thread that applies a result drops the oldest."""
        snapshot = self._held().get(round)
        return (snapshot.shape.header, snapshot.chunk_hashes) if snapshot is not None else None

    def chunk(self, round: int, index: int) -> bytes:
        """A copy of a chunk's bytes; empty if the version is gone, which may happen during a transfer."""
        snapshot, draft = self._held().get(round), self._draft
        if snapshot is None:
            return draft.chunk(index) if draft is not None and draft.round == round else b""
        try:
            with self._committed.lease(snapshot.root) as leased:  # so that no commit overwrites it meanwhile
                return bytes(leased.chunk(index))
        except LocalError:
            return b""

    def pin(self, round: int) -> bool:
        """Keeps a version from now on; False if it is gone."""
        snapshot = self._held().get(round)
        if snapshot is None:
            return False
        if round not in self._leases:
            try:
                self._leases[round] = self._committed.lease(snapshot.root)
            except LocalError:  # a thread has dropped it since we looked
                return False
        return True

    def unpin_all_but(self, rounds: Sequence[int]) -> None:
        """Keeps the other pinned versions no longer."""
        for round in [round for round in self._leases if round not in rounds]:
            self._leases.pop(round).release()

    def begin(self, round: int, layout: bytes, hashes: Sequence[Digest]) -> set[int]:
        """Make room for a version that is to be downloaded; the indices of the chunks that are here already."""
        if self._draft is None or not self._draft.is_of(round, layout, hashes):
            self.drop()
            assert self._file is not None
            self._draft = Draft(self._committed.shape, round, layout, hashes, self._file)
        return set(self._draft.here)

    def put(self, index: int, payload: Payload) -> None:
        """A chunk of it has come, and has the right hash."""
        assert self._draft is not None
        self._draft.put(index, payload)

    def drop(self) -> None:
        """It is of no use any more."""
        if (draft := self._draft) is not None:
            draft.drop()
            self._forget()

    def take(self, round: int) -> Draft | None:
        """The version of this round, all of which has come; None if it was dropped meanwhile."""
        draft = self._draft
        if draft is None or draft.round != round or len(draft.here) < len(draft.hashes):
            return None
        draft.drop()
        self._forget()
        return draft

    def _forget(self) -> None:
        assert self._path is not None
        self._draft, self._file = None, ChunkFile(self._path)

    def _held(self) -> dict[int, Snapshot]:
        held = {round: lease.snapshot for round, lease in self._leases.copy().items()}
        return held | {snapshot.round: snapshot for snapshot in self._committed.versions()}
