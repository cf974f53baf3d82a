"""What a run gains if it takes over what the members of a left branch have learned, beside dropping it.

    python benchmarks/left_branch.py                            three seeds, half an hour of two cores
    python benchmarks/left_branch.py --methods diloco --cuts 5 --seeds 1

Eight virtual workers (node/lab) train the built-in text for a while, then in two parts, 5 | 3, that hear nothing of
each other, and then in one run again, which goes on from the state of the greater part. What the lesser one has learned
is

- dropped: as a run does it;
- offered: its whole difference from the run's state is one more contribution to the first round after that, weighted by
  its tokens since the cut, as those of the others are by theirs;
- offered as learned: the same with its change since the cut, whatever the others have learned meanwhile;
- averaged: no contribution, but the run's state is the mean of both, weighted by their tokens since the cut.

Printed is the validation loss after 1, 3 and 10 rounds, as a difference from that of dropping it; less is better.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from dataclasses import dataclass

import torch
from kit.recipes import CHOSEN, SIZES, WORKERS, manifest, training
from torch import Tensor

from shoal.node.lab.registry import set_up
from shoal.node.lab.virtual_workers import VirtualWorkers
from shoal.node.training.data.corpus import stdlib_corpus
from shoal.node.training.methods.method import PARAMETERS, Answer, Vectors, applied
from shoal.node.training.trainer.evaluate import validation_loss

GREATER = 5  # of the workers
BEFORE, AFTER = 20, 10  # rounds
LOOKS = (1, 3, 10)
VALIDATION = 64 << 10  # bytes of held-out text
ARMS = ("dropped", "offered", "offered as learned", "averaged")
METHODS = ("diloco", "sparseloco")  # others send no changes of a state that all stand on: no claim is made about them


@dataclass(frozen=True, slots=True)
class Job:
    """One play."""

    method: str
    cut: int  # rounds
    seed: int


class Play:
    """The workers, in one part or in two, each with a state of its own."""

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(1)
        recipe, size, steps = CHOSEN[job.method], SIZES["small"], 2000
        made, self._corpus = training(job.method, recipe, steps), stdlib_corpus()
        self._manifest = manifest(size, recipe, job.seed, steps)
        self._workers = VirtualWorkers(self._manifest, self._corpus.train, WORKERS, steps)
        self._period = self._manifest.method.inner_steps
        self._method = set_up(made.method, made.settings, self._workers, self._period).method
        agreed, private = self._method.begin(self._workers.weights[0].clone())
        self._private: list[Vectors] = [private] * WORKERS
        self._step = self._round = 0
        self.parts: dict[tuple[int, ...], Vectors] = {tuple(range(WORKERS)): agreed}

    def advance(self, offer: tuple[Tensor, float] | None = None) -> None:
        """One round of all parts; `offer` is one more contribution, (d,), with the weight of so many others."""
        for _ in range(self._period):
            self._step += 1
            self._workers.step(self._step)
        self._round += 1
        for members, agreed in list(self.parts.items()):
            self.parts[members] = self._average(members, agreed, offer)

    def _average(self, members: Sequence[int], agreed: Vectors, offer: tuple[Tensor, float] | None) -> Vectors:
        total, weight = torch.zeros_like(agreed[PARAMETERS]), 0.0
        for worker in members:
            theta = self._workers.weights[worker].clone()
            made = self._method.contribute(0, theta, agreed, self._private[worker])
            self._private[worker] = made.private
            total, weight = total + made.payload, weight + 1.0
        if offer is not None:
            total, weight = total + offer[0] * offer[1], weight + offer[1]
        mean = Answer(total / weight, 1, number=self._round)
        after = applied(self._method, 0, agreed, mean)
        for worker in members:
            self._workers.weights[worker] = after[PARAMETERS]
        return after

    def cut(self) -> None:
        """Two parts from now on."""
        ((_, agreed),) = self.parts.items()
        self.parts = {tuple(range(GREATER)): agreed, tuple(range(GREATER, WORKERS)): agreed}

    def heal(self, weights: Tensor | None = None) -> None:
        """One run again, from the state of the greater part, or with these parameters, (d,), in it."""
        agreed, _ = self.parts.values()
        agreed = agreed if weights is None else {**agreed, PARAMETERS: weights}
        self.parts = {tuple(range(WORKERS)): agreed}
        self._workers.weights[:] = agreed[PARAMETERS]

    def loss(self) -> float:
        """The validation loss of the first part's state."""
        weights, text = next(iter(self.parts.values()))[PARAMETERS], self._corpus.validation[:VALIDATION]
        return validation_loss(self._workers.model_of(weights), text, self._manifest.model.context).loss


def losses(job: Job) -> dict[str, list[float]]:
    """The validation losses of each arm at LOOKS."""
    play = Play(job)
    for _ in range(BEFORE):
        play.advance()
    before = next(iter(play.parts.values()))[PARAMETERS].clone()
    play.cut()
    for _ in range(job.cut):
        play.advance()
    return {arm: list(_after(deepcopy(play), arm, before, job.cut)) for arm in ARMS}


def _after(play: Play, arm: str, before: Tensor, cut: int) -> Iterator[float]:
    greater, lesser = (agreed[PARAMETERS].clone() for agreed in play.parts.values())
    share = (WORKERS - GREATER) / WORKERS  # of the tokens since the cut
    tokens = float(cut * (WORKERS - GREATER))  # of the lesser part; a worker's are 1 a round
    offers = {"offered": (greater - lesser, tokens), "offered as learned": (before - lesser, tokens)}
    play.heal(greater + share * (lesser - greater) if arm == "averaged" else None)
    for round in range(1, AFTER + 1):
        play.advance(offers.get(arm) if round == 1 else None)
        if round in LOOKS:
            yield play.loss()


def main() -> None:
    """Play, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--cuts", nargs="+", type=int, default=[5, 20], metavar="ROUNDS", help="how long a cut lasts")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    jobs = [
        Job(method, cut, seed) for method in options.methods for cut in options.cuts for seed in range(options.seeds)
    ]
    with ProcessPoolExecutor(2) as pool:
        found = dict(zip(jobs, pool.map(losses, jobs), strict=True))
    if options.json:
        print(
            json.dumps(
                [{"method": job.method, "cut": job.cut, "seed": job.seed, **arms} for job, arms in found.items()]
            )
        )
        return
    print(f"| method | cut | what the lesser part has learned is | {' | '.join(f'after {look}' for look in LOOKS)} |")
    print("|---|---|---|" + "---|" * len(LOOKS))
    for method in options.methods:
        for cut in options.cuts:
            plays = [arms for job, arms in found.items() if (job.method, job.cut) == (method, cut)]
            for arm in ARMS:
                print(f"| {method} | {cut} rounds | {arm} | {' | '.join(_cells(plays, arm))} |")


def _cells(plays: Sequence[dict[str, list[float]]], arm: str) -> Iterator[str]:
    for place in range(len(LOOKS)):
        dropped = [each["dropped"][place] for each in plays]
        if arm == "dropped":
            yield f"{statistics.fmean(dropped):.4f}"
            continue
        more = [each[arm][place] - before for each, before in zip(plays, dropped, strict=True)]
        yield f"{statistics.fmean(more):+.4f} ({min(more):+.4f} to {max(more):+.4f})"


if __name__ == "__main__":
    main()
