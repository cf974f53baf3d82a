"""Virtual peers that train by a method whose exchanges are means, step by step, as its interface says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.node.training.methods.method import Answer, Exchange, Method, Vectors, applied

Train = Callable[[int, int, Tensor], Tensor]  # (peer, step from 1, weights) -> the weights after that inner step


@dataclass
class Peer:
    theta: Tensor
    agreed: Vectors
    private: Vectors


def mean(vectors: list[Tensor]) -> Tensor:
    total = vectors[0]
    for each in vectors[1:]:
        total = total + each
    return total / len(vectors)


def mean_of_all(sent: Sequence[Tensor], weights: Sequence[float] | None = None) -> Tensor:
    """The weighted mean, (k,), of vectors in roster order, as owners compute it; values that were not sent are 0.

    It has the same bits, for weights over 0, which are taken relative to the first one.
    """
    weights = weights or [1.0] * len(sent)
    total = sent[0].clone()
    for vector, weight in zip(sent[1:], weights[1:], strict=True):
        total = total + vector * (weight / weights[0])
    return total / (sum(weights) / weights[0])


def descent(targets: Tensor, rate: float) -> Train:
    """Peer i descends towards row i of `targets`, with noise that depends on the step and the peer."""

    def train(peer: int, step: int, theta: Tensor) -> Tensor:
        noise = torch.randn(theta.shape, generator=torch.Generator().manual_seed(1000 * step + peer))
        return theta - rate * (theta - targets[peer] + 0.1 * noise)

    return train


class Swarm:
    """Peers that train by `method`; the exchanges of the steps in `lost` fail."""

    def __init__(self, method: Method, theta: Tensor, peers: int, train: Train, lost: Collection[int] = ()) -> None:
        assert method.exchange is Exchange.MEAN
        self._method, self._train, self._lost = method, train, lost
        self.peers = [Peer(theta, *method.begin(theta)) for _ in range(peers)]
        self.means: dict[tuple[int, int], Tensor] = {}  # by (part, step of the launch)
        self.step = 0

    def run(self, steps: int) -> list[Peer]:
        """The peers after `steps` further steps; asserts that they agree after each exchange."""
        for _ in range(steps):
            self.step += 1
            for index, peer in enumerate(self.peers):
                peer.theta = self._train(index, self.step, peer.theta)
            for part in self._method.launches(self.step):
                self._launch(part)
            for part in self._method.launches(self.step - self._method.delay):
                self._land(part, self.step - self._method.delay)
        return self.peers

    def _launch(self, part: int) -> None:
        made = [self._method.contribute(part, peer.theta.clone(), peer.agreed, peer.private) for peer in self.peers]
        if self.step in self._lost:
            return
        self.means[part, self.step] = mean([each.payload for each in made])
        for each, peer in zip(made, self.peers, strict=True):
            peer.private = each.private

    def _land(self, part: int, launched: int) -> None:
        value, method = self.means.get((part, launched)), self._method
        for peer in self.peers:
            if value is None:
                merged = method.lapse(part, peer.theta, peer.agreed, peer.private, len(self.peers))
            else:
                answer = Answer(value, len(self.peers))
                peer.agreed = applied(method, part, peer.agreed, answer)
                merged = method.merge(part, peer.theta, peer.agreed, peer.private, answer)
            peer.theta, peer.private = merged
        first = self.peers[0].agreed
        assert all(torch.equal(peer.agreed[name], first[name]) for peer in self.peers for name in first)
