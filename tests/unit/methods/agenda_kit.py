"""Peers whose agendas and replicas do what daemons and workers do, in any order in which things may happen."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from shoal.node.ipc.messages import Landing, Range, Train
from shoal.node.ipc.vectors import moments_size
from shoal.node.supervisor.agenda import Agenda, Stint
from shoal.node.training.methods.method import Answer, Method, Vectors, applied, has_own_weights
from shoal.node.training.methods.timetable import Timetable
from shoal.node.worker.weights import WorkerWeights
from tests.unit.methods.mean_kit import Train as Step
from tests.unit.methods.mean_kit import mean


class Weights:
    """A model that consists of its weights alone."""

    def __init__(self, size: int) -> None:
        self.device = torch.device("cpu")
        self.theta = torch.zeros(size)

    def load(self, theta: Tensor) -> None:
        self.theta = theta.clone()

    def read(self, out: Tensor | None = None) -> Tensor:
        return self.theta.clone() if out is None else out.copy_(self.theta)


class Worker:
    """One process of a worker."""

    def __init__(self, method: Method, moments: Tensor, size: int) -> None:
        self.model = Weights(size)
        self.agreed = np.zeros(len(method.reads) * size, dtype=np.float32)
        self.answer = np.zeros(size, dtype=np.float32) if method.merges_answers else None
        self.weights = WorkerWeights(method, self.model, self.agreed, moments.numpy(), self.answer)


@dataclass
class Peer:
    index: int
    agenda: Agenda
    worker: Worker
    moments: Tensor
    base: int = 0
    began: int = 0  # the base that it began with
    stint: Stint | None = None
    handed_in: dict[int, Tensor] = field(default_factory=dict)  # by round
    shown: list[Tensor] = field(default_factory=list)  # its own weights, at the end of stints that show them


class Swarm:
    """A round is committed when all have handed in; each peer hears of it at a random time."""

    def __init__(self, method: Method, theta: Tensor, peers: int, step: Step, last: int, seed: int) -> None:
        self._method, self._step, self._last = method, step, last
        self.timetable = Timetable(method)
        self._rng = random.Random(seed)
        self.crashes = 0.0  # the probability that a stint is done by a new process, which gets the same order
        self.agreed: list[Vectors] = [method.begin(theta)[0]]  # by round
        self.answers: list[Tensor] = [torch.empty(0)]
        self.peers = [self._peer(index) for index in range(peers)]
        for peer in self.peers:
            peer.stint = peer.agenda.begin(0)

    def run(self, missed: tuple[Range, ...] = ()) -> None:
        """Run until the last round is committed everywhere, and no peer has anything to do."""
        while ready := [peer for peer in self.peers if peer.stint is not None or peer.base < len(self.agreed) - 1]:
            peer = self._rng.choice(ready)
            if peer.stint is None or (peer.base < len(self.agreed) - 1 and self._rng.random() < 0.5):
                peer.base += 1
                peer.stint = peer.agenda.committed(peer.base) or peer.stint
            else:
                if self._rng.random() < self.crashes:
                    peer.worker = Worker(self._method, peer.moments, len(peer.worker.model.theta))
                self._work(peer, missed)
            self._commit()
        assert len(self.agreed) == self._last + 1

    def _peer(self, index: int) -> Peer:
        size = len(next(iter(self.agreed[0].values())))
        moments = torch.zeros(moments_size(size, len(self._method.keeps)))
        agenda = Agenda(self.timetable, self._last, has_own_weights(self._method))
        return Peer(index, agenda, Worker(self._method, moments, size), moments)

    def _work(self, peer: Peer, missed: tuple[Range, ...]) -> None:
        stint, worker = peer.stint, peer.worker
        assert stint is not None
        newest = max(stint.landings, default=peer.base)  # a later round may be committed already
        worker.agreed[:] = torch.cat([self.agreed[newest][name] for name in self._method.reads]).numpy()
        if worker.answer is not None:
            worker.answer[: len(self.answers[newest])] = self.answers[newest].numpy()
        landings = [Landing(k, k > peer.began, k == newest, len(self.peers), missed) for k in stint.landings]
        worker.weights.take(
            Train(1, stint.round, 0, newest, stint.first, stint.steps, stint.hand_in, stint.is_fresh, tuple(landings))
        )
        before = self.timetable.launch(stint.round - 1) + stint.first
        for step in range(before + 1, before + stint.steps + 1):
            worker.model.load(self._step(peer.index, step, worker.model.theta))
        if stint.hand_in:
            out = torch.empty(len(worker.model.theta))
            payload = worker.weights.contribute(stint.round, worker.model.read(), out)
            worker.weights.keep()
            peer.moments[0] = stint.round
            peer.handed_in[stint.round] = payload.clone()
        if stint.shows:
            peer.shown.append(worker.model.read())
        peer.stint = peer.agenda.done()

    def _commit(self) -> None:
        round = len(self.agreed)
        if not all(round in peer.handed_in for peer in self.peers):
            return
        value = mean([peer.handed_in[round] for peer in self.peers])
        answer = Answer(value, len(self.peers), number=round)
        self.agreed.append(applied(self._method, self.timetable.part(round), self.agreed[-1], answer))
        self.answers.append(value)
