"""What two replicas send each other in a round, chunk by chunk, and what an answer is made of.

First come the vectors of the replica that go along (`sends` of methods/method.py) in the gather codec, one behind the
other, then the contribution in the scatter codec; all are cut alike. What an answer is made of is taken as the codecs
have made it, our own part as well, so that both make theirs of the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from shoal.node.training.methods.gossip import mix
from shoal.node.training.methods.method import Exchange, Method, Vectors
from shoal.protocol.base.errors import PayloadError
from shoal.protocol.base.wire import Payload
from shoal.protocol.rounds.allreduce.reducer import Contribute
from shoal.protocol.tensors.compression import Codec

LARGEST = 2.0**100  # of a number that is exchanged: sums and products of such stay far within fp32
HALF = 0.5  # the weight of both in a pair, by the rule of Metropolis and Hastings (lab/network.py)


class ExchangeChunks:
    """How the exchanges of one method are cut and coded; `bounds` are those of one vector (d,)."""

    def __init__(self, method: Method, bounds: Sequence[tuple[int, int]], scatter: Codec, gather: Codec) -> None:
        self._method, self._bounds = method, bounds
        self._scatter, self._gather = scatter, gather

    def __len__(self) -> int:
        """How many chunks each of two sends."""
        return len(self._bounds) * (len(self._method.sends) + 1)

    def encoder(self, replica: Vectors, contribution: Tensor) -> Contribute:
        """Encodes a chunk when it is asked for; neither may change before the round is over. LocalError: not finite."""

        def encode(index: int) -> Payload:
            vector, piece, codec = self._place(index)
            source = contribution if vector is None else replica[vector]
            return codec.encode(source[slice(*self._bounds[piece])])  # a copy: on its way, it outlives the round

        return encode

    def check(self, index: int, payload: Payload) -> None:
        """PayloadError unless it is such a chunk, of numbers with which one can go on."""
        _, piece, codec = self._place(index)
        start, stop = self._bounds[piece]
        check_numbers(codec, payload, stop - start)

    def answer(self, own: Contribute, theirs: Sequence[Payload], place: int) -> Iterator[Tensor]:
        """The values of an answer (methods/method.py), piece by piece, with (..., k) numbers each.

        `place` is ours in the pair, 0 or 1.
        """
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
        """The vector, None for the contribution, the piece of it, and the codec."""
        vector, piece = divmod(index, len(self._bounds))
        if vector == len(self._method.sends):
            return None, piece, self._scatter
        return self._method.sends[vector], piece, self._gather

    def _decoded(self, index: int, payload: Payload) -> Tensor:
        _, piece, codec = self._place(index)
        start, stop = self._bounds[piece]
        return codec.decode(payload, stop - start)


def check_numbers(codec: Codec, payload: Payload, count: int) -> None:
    """PayloadError unless it is the payload of so many numbers, with which a replica can go on."""
    if codec.peak(payload, count) > LARGEST:
        raise PayloadError(f"numbers beyond {LARGEST:.3g}, with which no replica can go on")
