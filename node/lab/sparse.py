"""Error feedback and averaging for sparse codecs, for research: variants that no run uses.

Runs use plain error feedback (`compress` of methods/sparseloco.py). Here are momentum correction (DGC) and state
differences (EF21), as pure functions around any codec. The memory is a value: each function takes the old one and
returns the payload and the new one, of the same shape. So the caller decides when the new one takes effect.

    momentum correction     q = C(v + m u + g)                      v' = v + m u + g - q, u' = m u + g, 0 where q is not
    state differences       q = C(x - s)                            s' = s + q, here and wherever s is known

q is sent, and C is encoding and decoding, so rounding errors stay in the memory as well. Vectors are fp32, on one
device; decoding is done on the CPU.

`mean_of_senders` averages as the authors of SparseLoCo do; `union_of` tells how many values a mean of sparse
contributions has.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.protocol.tensors.compression import Codec, Payload


class Momentum(NamedTuple):
    """DGC's memory: the momentum, and the sum of updates that were not sent."""

    velocity: Tensor  # u
    unsent: Tensor  # v

    @classmethod
    def of(cls, like: Tensor) -> Momentum:
        """The initial memory, for vectors like this one."""
        return cls(torch.zeros_like(like), torch.zeros_like(like))


def with_momentum(
    codec: Codec, memory: Momentum, gradient: Tensor, momentum: float = 0.9, masking: bool = True
) -> tuple[Payload, Momentum]:
    """The payload of Deep Gradient Compression (arXiv 1712.01887) by a sparse codec, and its new memory.

    `masking` resets the momentum of values that were sent; without it, and if all are sent, this is SGD with momentum.
    The paper sends values exactly; here the codec's errors stay in the memory.
    """
    velocity = gradient + momentum * memory.velocity
    unsent = memory.unsent + velocity
    payload = codec.encode(unsent)
    sent = _sent(codec, payload, unsent)
    if masking:
        velocity = torch.where(sent == 0, velocity, 0)
    return payload, Momentum(velocity, unsent - sent)


def difference(codec: Codec, state: Tensor, gradient: Tensor) -> tuple[Payload, Tensor]:
    """The payload of EF21 (arXiv 2106.05203), which moves a state towards the gradient, and the new state.

    The owner holds the mean of the states, and adds the mean of the payloads to it.
    """
    change = gradient - state
    payload = codec.encode(change)
    return payload, state + _sent(codec, payload, change)


def _sent(codec: Codec, payload: Payload, like: Tensor) -> Tensor:
    """The vector to which the others decode the payload."""
    return codec.decode(payload, len(like)).to(like.device)


class Union(NamedTuple):
    """How many values of a block at least one member has sent."""

    expected: float  # if each member keeps random places; members who agree send fewer
    greatest: int


def mean_of_senders(sent: Sequence[Tensor], supports: Sequence[Tensor]) -> Tensor:
    """The mean, (k,), of each value over the members that sent it, 0 if none has: as in the authors' code.

    `supports` has a boolean vector for each sent one, true where a value was sent.
    """
    total, count = torch.zeros_like(sent[0]), torch.zeros_like(sent[0])
    for vector, support in zip(sent, supports, strict=True):
        total = total + vector
        count = count + support.float()
    return total / count.clamp(min=1)


def union_of(members: int, block: int, kept: int) -> Union:
    """The size of the union when `members` members keep `kept` of a block's `block` values each."""
    assert members > 0
    assert 0 < kept <= block
    missed = comb(block - 1, kept) / comb(block, kept)  # the probability that a member does not send a given value
    return Union(block * (1 - missed**members), min(block, members * kept))
