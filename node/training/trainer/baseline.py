"""Baselines for a swarm: the same model, data, schedule and seed, trained in one process.

- *alone*: trained on one member's share of the tokens (lane 0), as a user could without the swarm.
- *joined*: as many optimizer steps, each on the joined batches of all members, as one big machine could; it sees as
  many tokens as the swarm.

Each is trained at every learning rate of a small grid around the manifest's, and its best result counts, as another
rate may suit it than a member of a swarm. `gap_recovered` says where the swarm is between the two. The trainings are
independent: `run` can be mapped over processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from shoal.node.base.step_options import TrainerOptions
from shoal.node.manifest.manifest import Manifest
from shoal.node.training.data.corpus import load_corpus
from shoal.node.training.trainer.evaluate import AT_MOST, validation_loss
from shoal.node.training.trainer.inner import InnerTrainer

GRID = (0.35, 0.7, 1.4)  # times the manifest's inner learning rate; averaging allows a swarm a higher one


@dataclass(frozen=True, slots=True)
class Reference:
    """A baseline training to run: `manifest.rounds.last` rounds on these lanes at this inner learning rate."""

    manifest: Manifest
    lanes: tuple[int, ...]
    inner_lr: float
    data: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """The final validation loss of a training, and its mean training loss in each round."""

    loss: float
    curve: tuple[tuple[int, float], ...]  # (tokens so far, loss)


def references(manifest: Manifest, members: int, rounds: int, data: Sequence[Path] = ()) -> list[Reference]:
    """All trainings to run, the longest first."""
    fixed = manifest.model_copy(update={"rounds": manifest.rounds.model_copy(update={"last": rounds})})
    rates = [factor * manifest.method.inner_lr for factor in GRID]
    alone, joined = (0,), tuple(range(members))
    return [Reference(fixed, lanes, rate, tuple(data)) for lanes in (joined, alone) for rate in rates]


def run(
    training: Reference, options: TrainerOptions | None = None, tell: Callable[[float], None] = lambda share: None
) -> Result:
    """Runs one training; `tell` is called before each round, with the share of them that is done."""
    manifest = training.manifest
    method = manifest.method.model_copy(update={"inner_lr": training.inner_lr})
    corpus = load_corpus(manifest.data, training.data)
    trainer = InnerTrainer(manifest.model_copy(update={"method": method}), corpus, options=options)
    last = manifest.rounds.last
    assert last is not None
    rounds = []
    for round in range(1, last + 1):
        tell((round - 1) / last)
        rounds.append(trainer.train(round, training.lanes))
    tokens = accumulate(each.tokens for each in rounds)
    curve = tuple(zip(tokens, (each.loss for each in rounds), strict=True))
    measured = validation_loss(trainer.model, corpus.validation, manifest.model.context, AT_MOST)
    return Result(measured.loss, curve)


def best(results: Sequence[tuple[Reference, float]]) -> tuple[float, float]:
    """The lowest losses (alone, joined) among the results; a diverged training (NaN) loses to any other."""
    alone = [loss for training, loss in results if len(training.lanes) == 1]
    joined = [loss for training, loss in results if len(training.lanes) > 1]
    return min(alone, key=_nan_last), min(joined, key=_nan_last)


def gap_recovered(alone: float, swarm: float, joined: float) -> float:
    """0: the swarm is no better than training alone; 1: it is as good as one big machine."""
    return (alone - swarm) / (alone - joined)


def _nan_last(loss: float) -> tuple[bool, float]:
    return loss != loss, loss
