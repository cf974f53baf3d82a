"""Error feedback: what a lossy codec did not send stays with its sender, and goes along the next time.

Rules around a codec, as pure functions. What is remembered is a value: each function takes the old one and gives a new
one, of the same shape, beside the payload, and keeps nothing. So the caller decides when the new one counts. In a round
that is its commit, and only for the chunks whose mask names the caller; elsewhere the old one stands.

    error feedback          q = C(x + decay e)                      e' = x + decay e - q
    momentum correction     q = C(v + m u + g)                      v' = v + m u + g - q, u' = m u + g, 0 where q is not
    state differences       q = C(x - s)                            s' = s + q, here and wherever s is known

q is sent, and C is encoding and decoding, so errors of rounding are remembered as well. With decay 1, all that was sent
and what is remembered sum to all that was given. Vectors are fp32, on one device; decoding is the CPU's.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from shoal.protocol.compression.base import Codec, Payload


class Momentum(NamedTuple):
    """DGC's memory: the momentum, and what it has added up to and was not sent."""

    velocity: Tensor  # u
    unsent: Tensor  # v

    @classmethod
    def of(cls, like: Tensor) -> Momentum:
        """That of the beginning."""
        return cls(torch.zeros_like(like), torch.zeros_like(like))


def with_feedback(codec: Codec, error: Tensor, update: Tensor, decay: float = 1.0) -> tuple[Payload, Tensor]:
    """The payload of an update and of what was not sent before, and what now was not sent.

    SparseLoCo (arXiv 2508.15706) sends by `topk` and lets the error decay by 0.95, in place of an outer momentum. 1-bit
    Adam (arXiv 2102.02888) sends momentum by `sign`, and the owner does the same with the mean and an error of its own.
    """
    corrected = update + decay * error
    payload = codec.encode(corrected)
    return payload, corrected - _sent(codec, payload, corrected)


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
