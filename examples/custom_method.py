"""A custom training method, compared with DiLoCo in the laboratory: virtual workers in one process, no network.

    python examples/custom_method.py [rounds]

A method is a pure class (node/training/methods/method.py): when peers exchange, what they send, what they make of the
answer. This one is DiLoCo with Lion's outer step (Chen et al., arXiv 2302.06675): it uses the signs of the momentum, so
that a round changes all weights equally far. A run on the network names its method in its manifest, and each member
must have the code already: to use yours there, add it to node/training/methods/registry.py and
node/manifest/method.py on all machines.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from shoal.node.lab.network import Network
from shoal.node.lab.study import Study
from shoal.node.lab.virtual_workers import VirtualWorkers
from shoal.node.manifest.manifest import parse_manifest
from shoal.node.training.methods.diloco import DiLoCo
from shoal.node.training.methods.method import MOMENTUM, PARAMETERS, Answer, Method, Vectors

INNER_STEPS, WORKERS = 10, 4
MANIFEST = f"""
name = "my-method"
[model]
dim = 32
layers = 2
heads = 2
kv_heads = 1
hidden = 64
context = 32
[method]
inner_steps = {INNER_STEPS}
batch = 4
inner_lr = 5e-3
"""


class LionDiLoCo(DiLoCo):
    """DiLoCo but for `apply`, which all members compute to the same bits: fp32, elementwise, in a fixed order."""

    def __init__(self, inner_steps: int, lr: float = 1e-2, one: float = 0.9, two: float = 0.98) -> None:
        super().__init__(inner_steps, lr, one)
        self._rate, self._one, self._two = lr, one, two

    def apply(self, part: int, agreed: Vectors, answer: Answer) -> Vectors:
        """theta <- theta - lr sign(one m + (1 - one) Delta); m <- two m + (1 - two) Delta."""
        theta, momentum, delta = agreed[PARAMETERS], agreed[MOMENTUM], answer.value
        step = torch.sign(momentum * self._one + delta * (1 - self._one)) * self._rate
        return {PARAMETERS: theta - step, MOMENTUM: momentum * self._two + delta * (1 - self._two)}


def text() -> Tensor:
    """A text to learn, as bytes."""
    lines = "".join(f"{n} sheep on the hill, {n + 1} on the way.\n" for n in range(3000))
    return torch.frombuffer(bytearray(lines.encode()), dtype=torch.uint8)


def losses(method: Method, rounds: int) -> list[float]:
    """The workers' mean training loss at the end of each round."""
    steps = rounds * INNER_STEPS
    workers = VirtualWorkers(parse_manifest(MANIFEST), text(), WORKERS, steps)
    study = Study(workers, method, Network(method.exchange, WORKERS, seed=0))
    curve = [study.advance() for _ in range(steps)]
    assert all(torch.equal(row, study.weights[0]) for row in study.weights)  # a round's end: all stand on the same
    return curve[INNER_STEPS - 1 :: INNER_STEPS]


if __name__ == "__main__":
    asked = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    for mine in (DiLoCo(INNER_STEPS, 0.7, 0.9), LionDiLoCo(INNER_STEPS)):
        print(f"{type(mine).__name__:>12}: " + " ".join(f"{loss:.2f}" for loss in losses(mine, asked)))
