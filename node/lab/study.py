"""One training by a method, with virtual workers: the loop of method.py, and what is measured of it.

A step is: all make an inner step (or, of a method that wants them, a gradient), what is to be sent is contributed, and
what is due is applied and merged, or lapses. Agreed vectors are there once, as all have them alike; private ones each
worker has. What an exchange comes to is known at once and kept until it is due. A contribution whose exchange fails
leaves the private vectors as they were.

The result of a run is the model of averaged weights; where nothing is agreed single replicas are no part of it but
of interest. Losses are in nats per byte. Nothing here is random but by the seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.node.corpus import Corpus
from shoal.node.evaluate import validation_loss
from shoal.node.lab.crowd import Crowd
from shoal.node.lab.network import Network
from shoal.node.methods.gossip import merge
from shoal.node.methods.method import Answer, Exchange, Method, Vectors, applied

Answers = list[Answer | None]  # one per worker
Tell = Callable[[int, float], None]


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a training."""

    curve: tuple[float, ...]  # of each step the training loss, the mean over workers
    replicas: tuple[float, ...]  # of each worker's weights the validation loss
    merged: float  # validation loss of the mean of their weights
    parameters: int
    sent: float  # bytes per parameter that a worker sent in the whole run, on average; it received as many
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
    """The workers of one training."""

    def __init__(self, crowd: Crowd, method: Method, network: Network) -> None:
        self._crowd, self._method, self._network = crowd, method, network
        self._agreed, private = method.begin(crowd.weights[0].clone())
        self._private: list[Vectors] = [private] * crowd.workers  # vectors are replaced, never written to
        self._under_way: dict[int, list[tuple[int, Answers]]] = {}  # by the step of the launch
        self._applied: Counter[int] = Counter()  # of each part
        self._exchanges, self._step = 0, 0
        self.sent, self.answers, self.missed = 0.0, 0, 0

    @property
    def weights(self) -> Tensor:
        """Of all workers, (M, d); not to be written to."""
        return self._crowd.weights

    def advance(self) -> float:
        """One step of all; the mean of their training losses."""
        self._step += 1
        step, delay = self._step, self._method.delay
        if self._method.wants_gradients:
            sources, losses = self._crowd.gradients(step)
        else:
            losses, sources = self._crowd.step(step), self._crowd.weights
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

    def _launch(self, part: int, sources: Tensor) -> Answers:
        made = [
            self._method.contribute(part, source.clone(), self._agreed, private)
            for source, private in zip(sources, self._private, strict=True)
        ]
        answers, sent = self._network.exchange(self._exchanges, [each.payload for each in made])
        self._exchanges += 1
        self.sent += sent
        for worker, (each, answer) in enumerate(zip(made, answers, strict=True)):
            if answer is None:
                self.missed += 1
            else:
                self.answers += 1
                self._private[worker] = each.private
        return answers

    def _land(self, part: int, answers: Answers) -> None:
        if self._method.exchange is Exchange.MEAN and answers[0] is not None:
            self._applied[part] += 1
            answer = answers[0]._replace(number=self._applied[part])
            self._agreed = applied(self._method, part, self._agreed, answer)
            answers = [answer] * len(answers)
        for worker, each in enumerate(answers):
            theta, private = self._crowd.weights[worker].clone(), self._private[worker]
            if each is None:
                merged = self._method.lapse(part, theta, self._agreed, private, len(answers))
            else:
                merged = self._method.merge(part, theta, self._agreed, private, each)
            self._crowd.weights[worker] = merged.theta
            self._private[worker] = merged.private


def run(study: Study, crowd: Crowd, corpus: Corpus, steps: int, validation: int, tell: Tell | None = None) -> Result:
    """So many steps, and the losses on the first `validation` bytes of the held-out text; `tell` hears of each step."""
    curve = []
    for step in range(1, steps + 1):
        curve.append(study.advance())
        if tell is not None:
            tell(step, curve[-1])

    def loss(weights: Tensor) -> float:
        return validation_loss(crowd.model_of(weights), corpus.validation[:validation], crowd.manifest.model.context)

    rows = study.weights
    alike = all(torch.equal(row, rows[0]) for row in rows[1:])
    replicas = (loss(rows[0]),) * len(rows) if alike else tuple(loss(row) for row in rows)
    merged = replicas[0] if alike else loss(merge(rows))
    size = crowd.layout.size
    return Result(tuple(curve), replicas, merged, size, study.sent / size, study.answers, study.missed)
