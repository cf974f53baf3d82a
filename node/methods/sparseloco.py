"""SparseLoCo: DiLoCo without outer momentum, of which only the largest values are sent (arXiv 2508.15706).

What is not sent stays with its sender, and so do the errors of quantisation: C is encoding and decoding by the codec,
Delta the pseudo-gradient of `diloco` (it points uphill), e the error, zeros at first, and beta its decay:

    q_i = C(Delta_i + beta e_i)        e_i <- Delta_i + beta e_i - q_i        theta <- theta - eta mean(q_i)

The error takes the place of the outer momentum; eta counts once (the authors' CCLoco multiplies by it twice). With
beta = 1 all that was sent and the error sum to all that was given; with a codec that sends everything exactly this is
DiLoCo of momentum 0.

Of the mean two conventions exist. A run uses the mean over all, `mean_of_all`, which is what owners compute: a value
that somebody did not send counts as a zero. The authors' code divides each value by how many have sent it; that is
`mean_of_senders`, here for comparison. Then a value that one of M sent moves theta M times as far, so the two need
another eta. What comes back is the union of what was sent, so the codec of means must be dense or keep at least that
(`union_of`): a sparse one would drop values for good, as nobody feeds back what owners leave out.

- Late: nothing is. All wait for the mean; a contribution that misses its round is not in it, and the error is as if
  it had never been made.
- Abort: theta and all errors are what they were when the round began.
- Join: with the state of the last round and an error of zeros, also who fell behind and is sent a state. A worker that
  is started again, after a crash or from a checkpoint, has the error that its last contribution has left.
- Death: its error is lost, which is at most what it had not sent yet; the mean is that of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.node.methods.diloco import pseudo_gradient
from shoal.node.methods.fragments import Fragment
from shoal.node.methods.method import PARAMETERS, Answer, Contribution, Exchange, Merged, Vectors
from shoal.protocol.compression import Codec
from shoal.protocol.compression.feedback import with_feedback

ERROR = "error"  # what was not sent


class Union(NamedTuple):
    """How many values of a block at least one member has sent."""

    expected: float  # where each keeps places at random; members who agree send fewer
    greatest: int


def compress(codec: Codec, error: Tensor, delta: Tensor, decay: float) -> tuple[Tensor, Tensor]:
    """What all others will take a contribution for, and the next error; both (k,) in fp32, as the arguments are.

    The error counts only once the round is committed with this contribution in it: until then keep the old one.
    """
    payload, error = with_feedback(codec, error, delta, decay)
    return codec.decode(payload, len(delta)), error


def mean_of_all(sent: Sequence[Tensor], weights: Sequence[float] | None = None) -> Tensor:
    """The weighted mean, (k,), of vectors in roster order, a value not sent being 0: as owners compute it.

    To the same bits, for weights over 0: they are taken relative to the first one.
    """
    weights = weights or [1.0] * len(sent)
    total = sent[0].clone()
    for vector, weight in zip(sent[1:], weights[1:], strict=True):
        total = total + vector * (weight / weights[0])
    return total / (sum(weights) / weights[0])


def mean_of_senders(sent: Sequence[Tensor], supports: Sequence[Tensor]) -> Tensor:
    """The mean, (k,), of each value over those who sent it, 0 where nobody has: as the authors' code computes it.

    `supports`: for each vector a boolean one, true where a value was sent.
    """
    total, count = torch.zeros_like(sent[0]), torch.zeros_like(sent[0])
    for vector, support in zip(sent, supports, strict=True):
        total = total + vector
        count = count + support.float()
    return total / count.clamp(min=1)


def descend(theta: Tensor, mean: Tensor, lr: float) -> Tensor:
    """The next theta, (k,) in fp32: plain SGD on the mean."""
    for each in (theta, mean):
        assert each.dtype == torch.float32
        assert each.device.type == "cpu"
    return theta - mean * lr


def bytes_per_parameter(codec: Codec, n: int) -> float:
    """What one member sends of a vector of n > 0 values, per value; of codecs without a fixed size, the most."""
    return codec.bytes_for(n) / n


def union_of(members: int, block: int, kept: int) -> Union:
    """How much of a block comes back when so many members keep `kept` of its `block` values each."""
    assert members > 0
    assert 0 < kept <= block
    missed = comb(block - 1, kept) / comb(block, kept)  # that one member does not send a given value
    return Union(block * (1 - missed**members), min(block, members * kept))


class SparseLoCo:
    """The method: each `inner_steps` steps the whole vector, for whose mean all wait.

    The payload is what the codec has made of the values already. The run's scatter codec must be the same one, and one
    that takes its own values for what they are, as topk and fp32 do; then sending changes nothing more.
    """

    exchange, wants_gradients, delay = Exchange.MEAN, False, 0
    reads: tuple[str, ...] = (PARAMETERS,)
    sends: tuple[str, ...] = ()
    keeps: tuple[str, ...] = (ERROR,)
    merges_weights = merges_answers = False

    def __init__(self, inner_steps: int, lr: float, decay: float, codec: Codec) -> None:
        self.period, self._lr, self._decay, self._codec = inner_steps, lr, decay, codec

    def begin(self, theta: Tensor) -> tuple[Vectors, Vectors]:
        """Parameters are agreed; the error is private."""
        return {PARAMETERS: theta}, {ERROR: torch.zeros_like(theta)}

    def join(self, agreed: Vectors) -> Vectors:
        """Nothing was left unsent."""
        return {ERROR: torch.zeros_like(agreed[PARAMETERS])}

    def launches(self, step: int) -> tuple[int, ...]:
        """After the last step of a round."""
        return (0,) if step % self.period == 0 else ()

    def fragment(self, part: int) -> Fragment | None:
        """The only part is the whole vector."""
        return None

    def contribute(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors) -> Contribution:
        """The pseudo-gradient and the error, (d,), as far as they are sent."""
        delta = pseudo_gradient(agreed[PARAMETERS], theta, out=theta)
        sent, error = compress(self._codec, private[ERROR], delta, self._decay)
        return Contribution(sent, {ERROR: error})

    def apply(self, part: int, agreed: Vectors, answer: Answer) -> Vectors:
        """The outer step."""
        return {PARAMETERS: descend(agreed[PARAMETERS], answer.value, self._lr)}

    def merge(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors, answer: Answer) -> Merged:
        """All go on from the agreed parameters."""
        return Merged(agreed[PARAMETERS], private)

    def lapse(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors, members: int) -> Merged:
        """All go on from where the round began."""
        return Merged(agreed[PARAMETERS], private)
