"""The state of a run of replicas on this node: parameters that are agreed with nobody (methods/method.py).

It is held in versions and chunks, hashed, saved and given to joiners as a committed one is. A round makes the next
version of it by what was exchanged with one partner, or passes without an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from shoal.node.ipc.shm import FloatArray
from shoal.node.manifest.manifest import Manifest
from shoal.node.training.methods.method import PARAMETERS, Answer, Vectors
from shoal.node.training.state.committed import CommittedState, Snapshot
from shoal.node.training.state.exchange import ExchangeChunks, check_numbers
from shoal.node.training.state.outer import OuterState
from shoal.protocol.base.wire import Payload
from shoal.protocol.rounds.allreduce.chunks import FLOAT_BYTES
from shoal.protocol.rounds.allreduce.reducer import Contribute
from shoal.protocol.tensors.compression import codec
from shoal.protocol.tensors.memory import MEMORY


class ReplicaState(OuterState):
    """`exchanged` and `install` take long: call them in a thread, one at a time."""

    def __init__(self, manifest: Manifest, saved: CommittedState | None = None) -> None:
        """A replica that was saved, or the one that the manifest's seed gives: all begin equal."""
        super().__init__(manifest, saved)
        codecs = codec(manifest.codec.scatter), codec(manifest.codec.gather)
        self.exchange = ExchangeChunks(self.method, self.bounds(1), *codecs)

    def check_state(self, index: int, payload: Payload) -> None:
        """PayloadError unless it is such a chunk of a replica (fp32), with which one can go on."""
        check_numbers(codec("fp32"), payload, self.committed.shape.chunks[index].size // FLOAT_BYTES)

    def encoder(self, vector: FloatArray, round: int) -> Callable[[int], Payload]:
        """Encodes a chunk of our exchange; good until the round after this one is applied."""
        return self.exchange.encoder(self.committed.current.vectors, torch.from_numpy(vector))

    def untrained(self) -> FloatArray:
        """What one who has trained nothing since the replica was made contributes."""
        replica = self.committed.current.vectors
        made = self.method.contribute(self.timetable.part(1), replica[PARAMETERS].clone(), replica, {})
        array: FloatArray = made.payload.clone().numpy()
        return array

    def exchanged(self, round: int, own: Contribute, theirs: Sequence[Payload], place: int) -> Snapshot:
        """What the method makes of an exchange: `own` chunks against those of the partner; `place` is ours of the two.

        Rounds between the last one and `round` have passed.
        """
        self.passed(round - 1)
        part = self.timetable.part(round)
        MEMORY.trim()  # what only the exchange needs is the worker's meanwhile

        def rule(replica: Vectors, value: Tensor, start: int) -> Vectors:
            return self.method.apply(part, replica, Answer(value, 2, place, round, start))

        return self.committed.apply(self.exchange.answer(own, theirs, place), rule)

    def passed(self, round: int) -> Snapshot:
        """The rounds up to this one have no answer: the replica stays as it is."""
        return self.committed.skip(round)
