"""Rules around sparse codecs that no run uses: other memories of what was not sent, and other means of what was.

Error feedback itself is `compress` of methods/sparseloco.py, which runs use. Beside it there are momentum correction
(DGC) and state differences (EF21), as pure functions around any codec. What is remembered is a value: each function
takes the old one and gives a new one, of the same shape, beside the payload, and keeps nothing. So the caller decides
when the new one counts.

    momentum correction     q = C(v + m u + g)                      v' = v + m u + g - q, u' = m u + g, 0 where q is not
    state differences       q = C(x - s)                            s' = s + q, here and wherever s is known

q is sent, and C is encoding and decoding, so errors of rounding are remembered as well. Vectors are fp32, on one
device; decoding is the CPU's.

`mean_of_senders` is how the authors of SparseLoCo average, and `union_of` how much comes back of what members send.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.protocol.tensors.compression import Codec, Payload


class Momentum(NamedTuple):
    """DGC's memory: the momentum, and what it has added up to and was not sent."""

    velocity: Tensor  # u
    unsent: Tensor  # v

    @classmethod
    def of(cls, like: Tensor) -> Momentum:
        """That of the beginning."""
        return cls(torch.zeros_like(like), torch.zeros_like(like))


def with_momentum(
    codec: Codec, memory: Momentum, gradient: Tensor, momentum: float = 0.9, masking: bool = True
) -> tuple[Payload, Momentum]:
    """The payload of Deep Gradient Compression (arXiv 1712.01887) by a sparse codec, and its new memory.

    `masking` ends the momentum of what was sent; without it, and if all is sent, this is SGD with momentum. The paper's
    values are sent exactly: what a codec makes of them instead stays in the memory.
    """
    velocity = gradient + momentum * memory.velocity
    unsent = memory.unsent + velocity
    payload = codec.encode(unsent)
    sent = _sent(codec, payload, unsent)
    if masking:
        velocity = torch.where(sent == 0, velocity, 0)
    return payload, Momentum(velocity, unsent - sent)


def difference(codec: Codec, state: Tensor, gradient: Tensor) -> tuple[Payload, Tensor]:
    """The payload of EF21 (arXiv 2106.05203), the change of a state towards the gradient, and the new state.

    Who averages holds the mean of the states, and adds the mean of the payloads to it.
    """
    change = gradient - state
    payload = codec.encode(change)
    return payload, state + _sent(codec, payload, change)


def _sent(codec: Codec, payload: Payload, like: Tensor) -> Tensor:
    """What all others will take it for."""
    return codec.decode(payload, len(like)).to(like.device)


class Union(NamedTuple):
    """How many values of a block at least one member has sent."""

    expected: float  # where each keeps places at random; members who agree send fewer
    greatest: int


def mean_of_senders(sent: Sequence[Tensor], supports: Sequence[Tensor]) -> Tensor:
    """The mean, (k,), of each value over those who sent it, 0 where nobody has: as the authors' code computes it.

    `supports`: for each vector a boolean one, true where a value was sent.
    """
    total, count = torch.zeros_like(sent[0]), torch.zeros_like(sent[0])
    for vector, support in zip(sent, supports, strict=True):
        total = total + vector
        count = count + support.float()
    return total / count.clamp(min=1)


def union_of(members: int, block: int, kept: int) -> Union:
    """How much of a block comes back when so many members keep `kept` of its `block` values each."""
    assert members > 0
    assert 0 < kept <= block
    missed = comb(block - 1, kept) / comb(block, kept)  # that one member does not send a given value
    return Union(block * (1 - missed**members), min(block, members * kept))
