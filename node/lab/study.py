"""One training with virtual workers: the loop that method.py describes, and its measurements.

In each step all workers make an inner step (or compute a gradient, if the method wants that), contributions that are
due are sent, and answers that are due are applied and merged, or lapse. Agreed vectors are shared by all workers;
private ones exist for each. The result of an exchange is computed at once and kept until it is due. A contribution
whose exchange fails leaves the private vectors as they were.

A warm start is a number of first steps that all workers make together, as in data-parallel training; the method begins
after them, from their result, and counts its own steps. Workers may train on a GPU; exchanges are on the CPU.

The result is the model of averaged weights; if the workers differ, each replica is measured as well. Losses are in nats
per byte. All randomness follows from the seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.node.lab.network import FP32, NO_TRAFFIC, Network, Traffic
from shoal.node.lab.registry import WrongSetting, set_up
from shoal.node.lab.virtual_workers import VirtualWorkers
from shoal.node.manifest.manifest import Manifest
from shoal.node.training.data.corpus import Corpus
from shoal.node.training.methods.gossip import merge
from shoal.node.training.methods.method import Answer, Exchange, Method, Vectors, applied
from shoal.node.training.trainer.evaluate import validation_loss

Answers = list[Answer | None]  # one per worker
Tell = Callable[[int, float], None]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a training."""

    curve: tuple[float, ...]  # training loss of each step, averaged over workers
    replicas: tuple[float, ...]  # validation loss of each worker's weights
    merged: float  # validation loss of the averaged weights
    validation: tuple[tuple[int, float], ...]  # at several times: (steps made, validation loss of the averaged weights)
    parameters: int
    traffic: Traffic  # of the whole run, in bytes per parameter, of a worker on average
    greatest: float  # bytes sent per parameter in the largest exchange
    answers: int  # that workers received, in all
    missed: int  # contributions without an answer, in all

    @property
    def mean(self) -> float:
        """The mean of the replicas' losses."""
        return sum(self.replicas) / len(self.replicas)

    @property
    def spread(self) -> float:
        """The highest of the replicas' losses minus the lowest."""
        return max(self.replicas) - min(self.replicas)


class Study:
    """One training; `warm` is the number of first steps that all workers make together."""

    def __init__(self, workers: VirtualWorkers, method: Method, network: Network, warm: int = 0) -> None:
        self._workers, self._method, self._network, self._warm = workers, method, network, warm
        self._begin()
        self._under_way: dict[int, list[tuple[int, Answers]]] = {}  # by the step of the launch
        self._applied: Counter[int] = Counter()  # answers applied, by part
        self._exchanges, self._step = 0, 0
        self.traffic, self.greatest = NO_TRAFFIC, 0.0
        self.answers, self.missed = 0, 0

    def _begin(self) -> None:
        agreed, private = self._method.begin(_on_cpu(self._workers.weights[0]))
        self._agreed: list[Vectors] = [agreed] * self._workers.count  # vectors are replaced, never written to
        self._private: list[Vectors] = [private] * self._workers.count

    @property
    def weights(self) -> Tensor:
        """The weights of all workers, (M, d); not to be written to."""
        return self._workers.weights

    def advance(self) -> float:
        """One step of all workers; the mean of their training losses."""
        self._step += 1
        if self._step <= self._warm:
            return self._advance_together()
        step, delay = self._step - self._warm, self._method.delay
        if self._method.wants_gradients:
            sources, losses = self._workers.gradients(self._step)
        else:
            losses, sources = self._workers.step(self._step), self._workers.weights
        for part in self._method.launches(step):
            answers = self._launch(part, sources)
            if delay:
                self._under_way.setdefault(step, []).append((part, answers))
            else:
                self._land(part, answers)
        if delay:
            nothing: Answers = [None] * self._workers.count
            due = self._under_way.pop(step - delay, None)
            for part, answers in due or [(part, nothing) for part in self._method.launches(step - delay)]:
                self._land(part, answers)
        return losses.mean().item()

    def _advance_together(self) -> float:
        losses = self._workers.step(self._step, together=True)
        self._count(Traffic.of_mean(self._workers.count, self._workers.layout.size, FP32))
        if self._step == self._warm:
            self._begin()
        return losses.mean().item()

    def _count(self, traffic: Traffic) -> None:
        self.traffic, self.greatest = self.traffic.plus(traffic), max(self.greatest, traffic.sent)

    def _launch(self, part: int, sources: Tensor) -> Answers:
        made = [
            self._method.contribute(part, _on_cpu(source), agreed, private)
            for source, agreed, private in zip(sources, self._agreed, self._private, strict=True)
        ]
        payloads = [self._with_agreed(each.payload, agreed) for each, agreed in zip(made, self._agreed, strict=True)]
        answers, traffic = self._network.exchange(self._exchanges, payloads)
        self._exchanges += 1
        self._count(traffic)
        for worker, (each, answer) in enumerate(zip(made, answers, strict=True)):
            if answer is None:
                self.missed += 1
            else:
                self.answers += 1
                self._private[worker] = each.private
        return answers

    def _with_agreed(self, payload: Tensor, agreed: Vectors) -> Tensor:
        """A contribution, (d,), for a PAIR with the vectors that the method sends with it: (n, d)."""
        if self._method.exchange is not Exchange.PAIR:
            return payload
        return torch.stack((payload, *(agreed[name] for name in self._method.sends)))

    def _land(self, part: int, answers: Answers) -> None:
        if self._method.exchange is Exchange.MEAN and answers[0] is not None:
            self._applied[part] += 1
            answer = answers[0]._replace(number=self._applied[part])
            answers = [answer] * len(answers)
            self._agreed = [applied(self._method, part, self._agreed[0], answer)] * len(answers)
        elif self._method.exchange.is_of_replicas:
            self._agreed = [
                agreed if answer is None else applied(self._method, part, agreed, answer)
                for agreed, answer in zip(self._agreed, answers, strict=True)
            ]
        for worker, each in enumerate(answers):
            theta, agreed, private = _on_cpu(self._workers.weights[worker]), self._agreed[worker], self._private[worker]
            if each is None:
                merged = self._method.lapse(part, theta, agreed, private, len(answers))
            else:
                merged = self._method.merge(part, theta, agreed, private, each)
            self._workers.weights[worker] = merged.theta
            self._private[worker] = merged.private


def run(
    study: Study,
    workers: VirtualWorkers,
    corpus: Corpus,
    steps: int,
    validation: int,
    tell: Tell | None = None,
    every: int | None = None,
) -> Result:
    """Makes the steps, and measures losses on the first `validation` bytes of the held-out text.

    `tell` is called after each step; the averaged model is also measured each `every` steps.
    """

    def loss(weights: Tensor) -> float:
        return validation_loss(
            workers.model_of(weights), corpus.validation[:validation], workers.manifest.model.context
        ).loss

    curve, looked_at = [], []
    for step in range(1, steps + 1):
        curve.append(study.advance())
        if tell is not None:
            tell(step, curve[-1])
        if every is not None and step % every == 0 and step < steps:
            looked_at.append((step, loss(merge(study.weights))))
    rows = study.weights
    alike = all(torch.equal(row, rows[0]) for row in rows[1:])
    replicas = (loss(rows[0]),) * len(rows) if alike else tuple(loss(row) for row in rows)
    merged = replicas[0] if alike else loss(merge(rows))
    size = workers.layout.size
    return Result(
        tuple(curve),
        replicas,
        merged,
        (*looked_at, (steps, merged)),
        size,
        Traffic(*(each / size for each in study.traffic)),
        study.greatest / size,
        study.answers,
        study.missed,
    )


def _on_cpu(row: Tensor) -> Tensor:
    """A copy on the CPU."""
    return row.to("cpu", copy=True)


@dataclass(frozen=True, slots=True)
class Experiment:
    """The settings of a training beside those in the manifest (model, batches, inner optimizer, H and seed)."""

    method: str
    settings: tuple[str, ...] = ()  # key=value
    workers: int = 8
    lanes: int = 1  # batches that a worker joins to one
    steps: int = 400
    warm: int = 0  # steps that all workers make together before the method begins
    lose: float = 0.0  # the probability that an exchange fails


def prepare(
    experiment: Experiment, manifest: Manifest, text: Tensor, device: str = "cpu"
) -> tuple[Study, VirtualWorkers]:
    """The training and its workers, before the first step; WrongSetting if impossible. `text` is uint8, (bytes,)."""
    workers = VirtualWorkers(
        manifest, text, experiment.workers, experiment.steps, lanes=experiment.lanes, device=device
    )
    made = set_up(experiment.method, experiment.settings, workers, manifest.method.inner_steps)
    if experiment.warm and made.method.wants_gradients:
        raise WrongSetting(f"{experiment.method} needs no warm start: all its steps are made together")
    network = Network(
        made.method.exchange,
        experiment.workers,
        manifest.seed,
        lose=experiment.lose,
        degree=made.degree,
        values=made.values,
    )
    return Study(workers, made.method, network, experiment.warm), workers
