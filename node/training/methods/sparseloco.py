"""SparseLoCo: DiLoCo without outer momentum, of which only the largest values are sent (arXiv 2508.15706).

What is not sent stays with its sender, and so do the errors of quantisation: C is encoding and decoding by the codec,
Delta the pseudo-gradient of `diloco` (it points uphill), e the error, zeros at first, and beta its decay:

    q_i = C(Delta_i + beta e_i)        e_i <- Delta_i + beta e_i - q_i        theta <- theta - eta mean(q_i)

The error takes the place of the outer momentum; eta counts once (the authors' CCLoco multiplies by it twice). With
beta = 1 all that was sent and the error sum to all that was given; with a codec that sends everything exactly this is
DiLoCo of momentum 0.

Of the mean two conventions exist. A run uses the mean over all, which is what owners compute: a value that somebody did
not send counts as a zero. The authors' code divides each value by how many have sent it (lab/sparse.py). Then a value
that one of M sent moves theta M times as far, so the two need another eta. What comes back is the union of what was
sent, so the codec of means must be dense or keep at least that: a sparse one would drop values for good, as nobody
feeds back what owners leave out.

- Late: nothing is. All wait for the mean; a contribution that misses its round is not in it, and the error is as if
  it had never been made.
- Abort: theta and all errors are what they were when the round began.
- Join: with the state of the last round and an error of zeros, also who fell behind and is sent a state. A worker that
  is started again, after a crash or from a checkpoint, has the error that its last contribution has left.
- Death: its error is lost, which is at most what it had not sent yet; the mean is that of the others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.node.training.methods.diloco import pseudo_gradient
from shoal.node.training.methods.fragments import Fragment
from shoal.node.training.methods.method import PARAMETERS, Answer, Contribution, Exchange, Merged, Vectors
from shoal.protocol.tensors.compression import Codec

ERROR = "error"  # what was not sent


def compress(codec: Codec, error: Tensor, delta: Tensor, decay: float) -> tuple[Tensor, Tensor]:
    """What all others will take a contribution for, and the next error; both (k,) in fp32, as the arguments are.

    The error counts only once the round is committed with this contribution in it: until then keep the old one.
    """
    corrected = delta + decay * error
    sent = codec.decode(codec.encode(corrected), len(corrected))
    return sent, corrected - sent.to(corrected.device)


def descend(theta: Tensor, mean: Tensor, lr: float) -> Tensor:
    """The next theta, (k,) in fp32: plain SGD on the mean."""
    for each in (theta, mean):
        assert each.dtype == torch.float32
        assert each.device.type == "cpu"
    return theta - mean * lr


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
