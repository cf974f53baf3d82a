"""Computes the results of exchanges among virtual workers, each a pure function of the seed and the exchange's number.

With probability `lose`, by a hash of the seed, the exchange and the workers concerned, something fails:

- MEAN: the whole exchange, for all workers, as an aborted round;
- PAIR: a pair, neither of which gets an answer; a worker without a partner gets none either;
- GRAPH: a worker, which neither sends nor gets anything. Its neighbours keep its weight for themselves, so the mean
  over all workers stays the same; a worker without neighbours has no answer.

Bytes are those of one worker, averaged over all workers. Failed exchanges count nothing.

- MEAN: each worker owns a share of the vector, gets it from M - 1 others and sends them its mean: (M - 1) / M of the
  contribution, in its codec, go out, and as much of the mean in fp32 comes back. As an owner it does the reverse, too.
- PAIR and GRAPH: each worker sends its payload to its partner, or to each neighbour, and gets theirs.

The graph of a round is an Erdős-Rényi graph: any two members are neighbours with the same probability, by a hash of the
seed, the round and the two names. So all who know the members compute the same graph, in whatever order they name them,
and an edge does not depend on other members. Weights are those of Metropolis and Hastings: for neighbours i and j

    w_ij = 1 / (1 + max(deg_i, deg_j))        w_ii = 1 - sum_j w_ij >= 1 / (1 + deg_i)

They are symmetric, so columns as well as rows sum to 1: mixing preserves the mean over all workers. Each worker needs
only its neighbours' degrees; one without neighbours keeps weight 1. Components of a graph that no edge joins mix in
later rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from shoal.node.training.methods.gossip import merge, mix
from shoal.node.training.methods.method import Answer, Exchange
from shoal.protocol.base.ids import digest
from shoal.protocol.replicas.meeting import pairs
from shoal.protocol.tensors.compression import Codec, codec

Peer = TypeVar("Peer", bound=str)
Graph = Mapping[Peer, tuple[Peer, ...]]


def neighbours(seed: bytes, round: int, members: Sequence[Peer], probability: float) -> Graph[Peer]:
    """The graph of a round: the sorted neighbours of each member; ValueError if an argument is invalid."""
    if not 0 <= probability <= 1:
        raise ValueError(f"the probability of an edge is {probability}; it must be from 0 to 1")
    if len(set(members)) < len(members):
        raise ValueError("a member is named twice")
    least = int(probability * HASHES)
    found: dict[Peer, list[Peer]] = {member: [] for member in members}
    for left, right in combinations(sorted(members), 2):
        if _number(seed, round, left, right) < least:
            found[left].append(right)
            found[right].append(left)
    return {member: tuple(sorted(others)) for member, others in found.items()}


def weights_of(graph: Graph[Peer], member: Peer) -> tuple[float, ...]:
    """The weights of a member's neighbours, in their order; its own weight is the rest to 1."""
    degree = len(graph[member])
    return tuple(1 / (1 + max(degree, len(graph[other]))) for other in graph[member])


def _number(seed: bytes, round: int, left: str, right: str) -> int:
    found = digest("edges of a round", seed, round.to_bytes(8, "little"), left.encode(), right.encode())
    return int.from_bytes(found[:8], "little")


FP32 = codec("fp32")
HASHES = 2**64


class Traffic(NamedTuple):
    """Bytes of one worker in one exchange."""

    contributed: float  # of its own contribution
    answered: float  # of the answers to it
    sent: float  # all that leaves the worker, as an owner, too; as much arrives

    @classmethod
    def of_mean(cls, members: int, size: int, values: Codec) -> Traffic:
        """The traffic of a MEAN of `size` numbers, with contributions in the codec `values`."""
        share = (members - 1) / members
        there, back = share * values.bytes_for(size), share * FP32.bytes_for(size)
        return cls(there, back, there + back)

    @classmethod
    def of_payloads(cls, count: float, size: int) -> Traffic:
        """The traffic of sending and receiving so many payloads, each of `size` numbers in fp32."""
        bytes = count * FP32.bytes_for(size)
        return cls(bytes, bytes, bytes)

    def plus(self, other: Traffic) -> Traffic:
        """The sum of both."""
        return Traffic(*(one + two for one, two in zip(self, other, strict=True)))


NO_TRAFFIC = Traffic(0.0, 0.0, 0.0)


class Outcome(NamedTuple):
    """The result of one exchange."""

    answers: list[Answer | None]  # one per worker
    traffic: Traffic  # of one worker, on average over all


class Network:
    """A simulated network between workers, which are numbered from 0."""

    def __init__(
        self,
        kind: Exchange,
        workers: int,
        seed: int,
        *,
        lose: float = 0.0,
        degree: float = 0.0,
        values: Codec = FP32,
    ) -> None:
        """`degree` is the average number of neighbours (GRAPH), `values` the codec of contributions (MEAN)."""
        self._kind, self._values = kind, values
        self._names = [f"{worker:06}" for worker in range(workers)]
        self._seed, self._lose = seed.to_bytes(8, "little"), lose
        self._probability = min(1.0, degree / (workers - 1)) if workers > 1 else 0.0

    def exchange(self, number: int, payloads: Sequence[Tensor]) -> Outcome:
        """The answers to the workers' payloads, in their order; `number` counts the exchanges of the run."""
        if self._kind is Exchange.MEAN:
            return self._mean(number, payloads)
        return self._pairs(number, payloads) if self._kind is Exchange.PAIR else self._graph(number, payloads)

    def _mean(self, number: int, payloads: Sequence[Tensor]) -> Outcome:
        members, size = len(payloads), payloads[0].numel()
        if self._fails(number):
            return Outcome([None] * members, NO_TRAFFIC)
        answer = Answer(merge(torch.stack(list(payloads))), members)
        return Outcome([answer] * members, Traffic.of_mean(members, size, self._values))

    def _pairs(self, number: int, payloads: Sequence[Tensor]) -> Outcome:
        answers: list[Answer | None] = [None] * len(payloads)
        for pair in pairs(self._seed, number, self._names):
            if self._fails(number, *sorted(pair)):
                continue
            places = [int(name) for name in pair]
            value = torch.stack([payloads[place] for place in places])
            for own, place in enumerate(places):
                answers[place] = Answer(value, 2, own)
        served = sum(answer is not None for answer in answers)
        return Outcome(answers, Traffic.of_payloads(served / len(payloads), payloads[0].numel()))

    def _graph(self, number: int, payloads: Sequence[Tensor]) -> Outcome:
        graph = neighbours(self._seed, number, self._names, self._probability)
        there = {name for name in self._names if not self._fails(number, name)}
        answers: list[Answer | None] = [None] * len(payloads)
        edges = 0
        for name in there:
            weights = {o: w for o, w in zip(graph[name], weights_of(graph, name), strict=True) if o in there}
            if weights:
                others = [payloads[int(other)] for other in weights]
                answers[int(name)] = Answer(mix(payloads[int(name)], others, list(weights.values())), 1 + len(others))
            edges += len(weights)
        return Outcome(answers, Traffic.of_payloads(edges / len(payloads), payloads[0].numel()))

    def _fails(self, number: int, *whom: str) -> bool:
        found = digest("losses of a laboratory", self._seed, number.to_bytes(8, "little"), *map(str.encode, whom))
        return int.from_bytes(found[:8], "little") < self._lose * HASHES
