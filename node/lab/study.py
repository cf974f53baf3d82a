"""One training by a method, with virtual workers: the loop of method.py, and its measurements.

In each step all workers make an inner step (or compute a gradient, if the method wants that), contributions that are
due are sent, and answers that are due are applied and merged, or lapse. Agreed vectors exist once, as all have the
same; private ones exist for each worker. The result of an exchange is computed at once and kept until it is due. A
contribution whose exchange fails leaves the private vectors as they were.

A warm start is a number of first steps that all make together, as in data-parallel training; the method begins after
them, from their result, and counts its own steps. Workers may train on a GPU; exchanges are on the CPU.

The result of a run is the model of averaged weights; if nothing is agreed, single replicas are measured as well. Losses
are in nats per byte. All randomness follows from the seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.node.lab.crowd import Crowd
from shoal.node.lab.network import FP32, NO_TRAFFIC, Network, Traffic
from shoal.node.lab.registry import WrongSetting, set_up
from shoal.node.manifest.manifest import Manifest
from shoal.node.training.data.corpus import Corpus
from shoal.node.training.methods.gossip import merge
from shoal.node.training.methods.method import Answer, Exchange, Method, Vectors, applied
from shoal.node.training.trainer.evaluate import validation_loss

Answers = list[Answer | None]  # one per worker
Tell = Callable[[int, float], None]


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a training."""

    curve: tuple[float, ...]  # of each step the training loss, the mean over workers
    replicas: tuple[float, ...]  # of each worker's weights the validation loss
    merged: float  # validation loss of the mean of their weights
    validation: tuple[tuple[int, float], ...]  # now and then: (steps made, validation loss of that mean)
    parameters: int
    traffic: Traffic  # of the whole run, in bytes per parameter, of a worker on average
    greatest: float  # of the greatest exchange the bytes sent, per parameter
    answers: int  # how often a worker got one, all together
    missed: int  # how often a worker sent something and got none

    @property
    def mean(self) -> float:
        """Of the replicas' losses."""
        return sum(self.replicas) / len(self.replicas)

    @property
    def spread(self) -> float:
        """Of the replicas' losses: the highest less the lowest."""
        return max(self.replicas) - min(self.replicas)


class Study:
    """The workers of one training; `warm` is how many steps they make together at first."""

    def __init__(self, crowd: Crowd, method: Method, network: Network, warm: int = 0) -> None:
        self._crowd, self._method, self._network, self._warm = crowd, method, network, warm
        self._begin()
        self._under_way: dict[int, list[tuple[int, Answers]]] = {}  # by the step of the launch
        self._applied: Counter[int] = Counter()  # of each part
        self._exchanges, self._step = 0, 0
        self.traffic, self.greatest = NO_TRAFFIC, 0.0
        self.answers, self.missed = 0, 0

    def _begin(self) -> None:
        agreed, private = self._method.begin(_on_cpu(self._crowd.weights[0]))
        self._agreed: list[Vectors] = [agreed] * self._crowd.workers  # vectors are replaced, never written to
        self._private: list[Vectors] = [private] * self._crowd.workers

    @property
    def weights(self) -> Tensor:
        """Of all workers, (M, d); not to be written to."""
        return self._crowd.weights

    def advance(self) -> float:
        """One step of all; the mean of their training losses."""
        self._step += 1
        if self._step <= self._warm:
            return self._advance_together()
        step, delay = self._step - self._warm, self._method.delay
        if self._method.wants_gradients:
            sources, losses = self._crowd.gradients(self._step)
        else:
            losses, sources = self._crowd.step(self._step), self._crowd.weights
        for part in self._method.launches(step):
            answers = self._launch(part, sources)
            if delay:
                self._under_way.setdefault(step, []).append((part, answers))
            else:
                self._land(part, answers)
        if delay:
            nothing: Answers = [None] * self._crowd.workers
            due = self._under_way.pop(step - delay, None)
            for part, answers in due or [(part, nothing) for part in self._method.launches(step - delay)]:
                self._land(part, answers)
        return losses.mean().item()

    def _advance_together(self) -> float:
        losses = self._crowd.step(self._step, together=True)
        self._count(Traffic.of_mean(self._crowd.workers, self._crowd.layout.size, FP32))
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
        payloads = [self._along(each.payload, agreed) for each, agreed in zip(made, self._agreed, strict=True)]
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

    def _along(self, payload: Tensor, agreed: Vectors) -> Tensor:
        """A contribution with what goes along: (n, d) of a PAIR, else (d,)."""
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
            theta, agreed, private = _on_cpu(self._crowd.weights[worker]), self._agreed[worker], self._private[worker]
            if each is None:
                merged = self._method.lapse(part, theta, agreed, private, len(answers))
            else:
                merged = self._method.merge(part, theta, agreed, private, each)
            self._crowd.weights[worker] = merged.theta
            self._private[worker] = merged.private


def run(
    study: Study,
    crowd: Crowd,
    corpus: Corpus,
    steps: int,
    validation: int,
    tell: Tell | None = None,
    every: int | None = None,
) -> Result:
    """So many steps, and the losses on the first `validation` bytes of the held-out text; `tell` hears of each step.

    The averaged model is looked at after `every` steps, too.
    """

    def loss(weights: Tensor) -> float:
        return validation_loss(crowd.model_of(weights), corpus.validation[:validation], crowd.manifest.model.context)

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
    size = crowd.layout.size
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
    """A copy there."""
    return row.to("cpu", copy=True)


@dataclass(frozen=True, slots=True)
class Experiment:
    """What is trained beside the manifest, which says model, batches, inner optimizer, H and seed."""

    method: str
    settings: tuple[str, ...] = ()  # key=value
    workers: int = 8
    lanes: int = 1  # batches that a worker takes together
    steps: int = 400
    warm: int = 0  # steps that all make together before the method begins
    lose: float = 0.0  # the probability that an exchange fails


def prepare(experiment: Experiment, manifest: Manifest, text: Tensor, device: str = "cpu") -> tuple[Study, Crowd]:
    """Its workers, before the first step; WrongSetting if there can be no such training. `text`: uint8, (bytes,)."""
    crowd = Crowd(manifest, text, experiment.workers, experiment.steps, lanes=experiment.lanes, device=device)
    made = set_up(experiment.method, experiment.settings, crowd, manifest.method.inner_steps)
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
    return Study(crowd, made.method, network, experiment.warm), crowd
