"""SparseLoCo: DiLoCo without outer momentum that sends only the largest values (arXiv 2508.15706).

Values that are not sent, and quantisation errors, stay with their member and are added to its next contribution (error
feedback). C is encoding and decoding by the codec, Delta the pseudo-gradient of diloco.py (it points uphill), e the
error, which starts as zeros, and beta its decay:

    q_i = C(Delta_i + beta e_i)        e_i <- Delta_i + beta e_i - q_i        theta <- theta - eta mean(q_i)

The error takes the place of the outer momentum; eta is applied once (the authors' CCLoco multiplies by it twice). With
beta = 1, all that was sent and the error add up to all pseudo-gradients; with a lossless codec this is DiLoCo with
momentum 0.

There are two conventions for the mean. A run uses the mean over all members, as owners compute it: a value that a
member did not send counts as zero. The authors' code divides each value by the number of members that sent it
(node/lab/sparse.py). There, a value that one of M members sent moves theta M times as far, so it needs another eta. The
mean has a value wherever any member sent one, so the codec of means must be dense: a sparse one would drop values for
good, as owners keep no error feedback.

- Late: all wait for the mean. A contribution that misses its round is not in the mean, and the error stays as if it had
  never been made.
- Abort: theta and all errors are as they were when the round began.
- Join: with the state of the last round and an error of zeros; so does a member that fell behind and is sent a state.
  A worker that is started again, after a crash or from a checkpoint, has the error after its last contribution.
- Death: the dead member's error is lost, which is at most what it had not sent yet. It is not in the mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.node.training.methods.diloco import pseudo_gradient
from shoal.node.training.methods.method import PARAMETERS, Answer, Contribution, MethodDefaults, Vectors
from shoal.protocol.tensors.compression import Codec

ERROR = "error"  # the private vector of the error feedback


def compress(codec: Codec, error: Tensor, delta: Tensor, decay: float) -> tuple[Tensor, Tensor]:
    """The contribution as the others will decode it, and the next error; both (k,) in fp32, like the arguments.

    The next error is only valid once a round with this contribution is committed; until then keep the old one.
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


class SparseLoCo(MethodDefaults):
    """The method: the whole vector is exchanged after each `inner_steps` steps, and all wait for the mean.

    The payload has already been encoded and decoded by the codec. The run's scatter codec must be the same, and encode
    its own output without further loss, as topk and fp32 do.
    """

    keeps: tuple[str, ...] = (ERROR,)

    def __init__(self, inner_steps: int, lr: float, decay: float, codec: Codec) -> None:
        self.period, self._lr, self._decay, self._codec = inner_steps, lr, decay, codec

    def begin(self, theta: Tensor) -> tuple[Vectors, Vectors]:
        """Parameters are agreed; the error is private."""
        return {PARAMETERS: theta}, {ERROR: torch.zeros_like(theta)}

    def join(self, agreed: Vectors) -> Vectors:
        """An error of zeros."""
        return {ERROR: torch.zeros_like(agreed[PARAMETERS])}

    def contribute(self, part: int, theta: Tensor, agreed: Vectors, private: Vectors) -> Contribution:
        """The part of pseudo-gradient plus error, (d,), that the codec keeps."""
        delta = pseudo_gradient(agreed[PARAMETERS], theta, out=theta)
        sent, error = compress(self._codec, private[ERROR], delta, self._decay)
        return Contribution(sent, {ERROR: error})

    def apply(self, part: int, agreed: Vectors, answer: Answer) -> Vectors:
        """The outer step."""
        return {PARAMETERS: descend(agreed[PARAMETERS], answer.value, self._lr)}
