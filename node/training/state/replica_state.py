"""The state of a run of replicas on this node (a replica is agreed with nobody), the exchanges with partners, the end.

A replica is held in versions and chunks, hashed, saved and given to joiners like a committed state. A round makes its
next version from the exchange with one partner, or passes without an answer.

In an exchange each partner sends first the replica's vectors that go along (`sends` of the method) in the gather codec,
one after the other, and then its contribution in the scatter codec; all are cut into the same chunks. Both partners
compute with all of these as the codecs decode them, also with their own, so both use the same numbers.

At its end the run has one result: the mean of all members' weights after the last round's inner steps, in fp32, which
all hold from then on. The other vectors are 0, as those of a run that begins with these weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from shoal.node.ipc.shm import FloatArray
from shoal.node.manifest.manifest import Manifest
from shoal.node.training.methods.gossip import mix
from shoal.node.training.methods.method import PARAMETERS, Answer, Exchange, Method, Vectors
from shoal.node.training.state.committed import CommittedState, Snapshot
from shoal.node.training.state.outer import HeldState
from shoal.protocol.averaging.chunks import FLOAT_BYTES, chunk_bounds, fitting_bytes
from shoal.protocol.averaging.reducer import Contribute
from shoal.protocol.base.errors import PayloadError
from shoal.protocol.base.wire import Payload
from shoal.protocol.tensors.compression import Codec, codec
from shoal.protocol.tensors.memory import MEMORY
from shoal.protocol.tensors.reduction import MeanReducer

LARGEST = 2.0**100  # allowed absolute value in an exchange: sums and products stay far within fp32
WHOLE = codec("fp32")  # of a replica as a whole, and of the last round
HALF = 0.5  # the weight of each partner, by the rule of Metropolis and Hastings (node/lab/network.py)


class ExchangeChunks:
    """Cuts and encodes the exchanges of one method; `bounds` are the chunks of one vector (d,)."""

    def __init__(self, method: Method, bounds: Sequence[tuple[int, int]], scatter: Codec, gather: Codec) -> None:
        self._method, self._bounds = method, bounds
        self._scatter, self._gather = scatter, gather

    def __len__(self) -> int:
        """How many chunks each partner sends."""
        return len(self._bounds) * (len(self._method.sends) + 1)

    def encoder(self, replica: Vectors, contribution: Tensor) -> Contribute:
        """A function that encodes a chunk on demand; LocalError if it is not finite.

        Neither argument may be changed before the round is over.
        """

        def encode(index: int) -> Payload:
            vector, piece, codec = self._place(index)
            source = contribution if vector is None else replica[vector]
            return codec.encode(source[slice(*self._bounds[piece])])  # a copy, as sending may outlast the round

        return encode

    def check(self, index: int, payload: Payload) -> None:
        """PayloadError unless the payload is a valid chunk of an exchange, and its numbers are not too large."""
        _, piece, codec = self._place(index)
        start, stop = self._bounds[piece]
        check_numbers(codec, payload, stop - start)

    def answer(self, own: Contribute, theirs: Sequence[Payload], place: int) -> Iterator[Tensor]:
        """The value of an `Answer`, piece by piece, (..., k) each; `place` is our own in the pair, 0 or 1."""
        count = len(self._bounds)
        for piece in range(count):
            indices = [len(self) - count + piece, *range(piece, len(self) - count, count)]  # the contribution first
            ours = torch.stack([self._decoded(index, own(index)) for index in indices])
            partners = torch.stack([self._decoded(index, theirs[index]) for index in indices])
            if self._method.exchange is Exchange.GRAPH:
                yield mix(ours[0], [partners[0]], [HALF])
            else:
                yield torch.stack((ours, partners) if place == 0 else (partners, ours))

    def _place(self, index: int) -> tuple[str | None, int, Codec]:
        """The vector of a chunk (None: the contribution), the chunk's number in it, and its codec."""
        vector, piece = divmod(index, len(self._bounds))
        if vector == len(self._method.sends):
            return None, piece, self._scatter
        return self._method.sends[vector], piece, self._gather

    def _decoded(self, index: int, payload: Payload) -> Tensor:
        _, piece, codec = self._place(index)
        start, stop = self._bounds[piece]
        return codec.decode(payload, stop - start)


def check_numbers(codec: Codec, payload: Payload, count: int) -> None:
    """PayloadError unless the payload has `count` numbers, none of them larger than LARGEST."""
    if codec.peak(payload, count) > LARGEST:
        raise PayloadError(f"numbers beyond {LARGEST:.3g}, with which no replica can go on")


class ReplicaState(HeldState):
    """The replica of this node. `exchanged` and `install` take long: call them in a thread, one at a time."""

    def __init__(self, manifest: Manifest, saved: CommittedState | None = None) -> None:
        """Begins with a saved replica, or with that of the manifest's seed, which is the same for all members."""
        super().__init__(manifest, saved)
        self.exchange = ExchangeChunks(self.method, self.bounds(1), self._scatter, self._gather)
        chunk_bytes = manifest.rounds.chunk_bytes or fitting_bytes(self.elements, WHOLE.bytes_for)
        self._last_bounds = chunk_bounds(self.elements, chunk_bytes, WHOLE.block)

    def check_state(self, index: int, payload: Payload) -> None:
        """PayloadError unless the payload is a valid chunk of a replica (fp32), and its numbers are not too large."""
        check_numbers(WHOLE, payload, self.committed.shape.chunks[index].size // FLOAT_BYTES)

    def encoder(self, vector: FloatArray, round: int) -> Callable[[int], Payload]:
        """A function that encodes a chunk of our exchange; valid until the round after this one is applied."""
        return self.exchange.encoder(self.committed.current.vectors, torch.from_numpy(vector))

    def untrained(self) -> FloatArray:
        """The contribution of a member that has trained nothing since the replica's last version."""
        replica = self.committed.current.vectors
        made = self.method.contribute(self.timetable.part(1), replica[PARAMETERS].clone(), replica, {})
        array: FloatArray = made.payload.clone().numpy()
        return array

    def exchanged(self, round: int, own: Contribute, theirs: Sequence[Payload], place: int) -> Snapshot:
        """Applies an exchange: our `own` chunks and the partner's; `place` is our own in the pair, 0 or 1.

        Rounds between the last version and `round` count as passed.
        """
        self.passed(round - 1)
        part = self.timetable.part(round)
        MEMORY.trim()  # gives memory for exchanges back while the worker trains

        def rule(replica: Vectors, value: Tensor, start: int) -> Vectors:
            return self.method.apply(part, replica, Answer(value, 2, place, round, start))

        return self.committed.apply(self.exchange.answer(own, theirs, place), rule)

    def passed(self, round: int) -> Snapshot:
        """Notes that the rounds up to this one have no answer: the replica stays as it is."""
        return self.committed.skip(round)

    # -- the last round ------------------------------------------------------------------------------------------

    @property
    def last_chunks(self) -> int:
        """How many chunks the average of the last round has."""
        return len(self._last_bounds)

    def last_reducer(self) -> MeanReducer:
        """The reducer with which an owner averages its chunks of the weights."""
        return MeanReducer([stop - start for start, stop in self._last_bounds], WHOLE, WHOLE)

    def weights(self, contribution: FloatArray | None) -> FloatArray:
        """The weights, (d,), with which a worker has made its contribution; None: those of the replica."""
        replica = self.committed.current.array()
        if contribution is None:
            return replica.copy()
        return contribution.copy() if self.method.exchange is Exchange.GRAPH else replica + contribution

    def last_encoder(self, weights: FloatArray) -> Callable[[int], Payload]:
        """A function that encodes a chunk of the weights, (d,), which must not be changed."""
        flat, bounds = torch.from_numpy(weights), self._last_bounds

        def encode(chunk: int) -> Payload:  # holds no reference to this object, which sending may outlast
            return WHOLE.encode_view(flat[slice(*bounds[chunk])])

        return encode

    def concluded(self, round: int, payloads: Sequence[Payload]) -> Snapshot:
        """Applies the mean of the last round: all members hold these bits from then on."""
        self.committed.skip(round - 1)
        self.committed.back_to(round - 1)  # where another branch of the log has decided the round anew
        sizes = [stop - start for start, stop in self._last_bounds]
        means = (WHOLE.decode(payload, size) for payload, size in zip(payloads, sizes, strict=True))

        def rule(replica: Vectors, mean: Tensor, start: int) -> Vectors:
            return {name: mean if name == PARAMETERS else torch.zeros_like(mean) for name in replica}

        return self.committed.apply(means, rule)
