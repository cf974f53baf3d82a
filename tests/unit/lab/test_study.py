"""The loop of a study: every method runs, and methods with a known outcome reach it."""

from __future__ import annotations

import math

import pytest
import torch

from shoal.node.lab.registry import METHODS
from shoal.node.lab.study import Result, run
from tests.unit.lab.lab_kit import CORPUS, INNER_STEPS, crowd_of, study_of


def result_of(
    name: str, workers: int, *given: str, rounds: int = 2, lose: float = 0.0, seed: int = 0
) -> tuple[Result, torch.Tensor]:
    steps = rounds * INNER_STEPS
    crowd = crowd_of(workers, steps, seed)
    study = study_of(name, crowd, *given, lose=lose)
    return run(study, crowd, CORPUS, steps, 200), study.weights


@pytest.mark.parametrize("lose", [0.0, 0.5])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_with_or_without_losses(name: str, lose: float) -> None:
    result, weights = result_of(name, 3, lose=lose, seed=3)  # of whose exchanges some fail, but not all
    assert weights.isfinite().all()
    assert all(map(math.isfinite, (*result.curve, *result.replicas, result.merged)))
    assert len(result.curve) == 2 * INNER_STEPS
    assert len(result.replicas) == 3
    assert result.curve[0] == pytest.approx(math.log(256), abs=0.1)
    assert result.merged < result.curve[0]
    byes = 2 if name == "noloco" else 0  # of three workers one has no partner
    assert result.answers > 0
    assert result.missed > byes if lose else result.missed == byes


def test_diloco_of_one_worker_that_takes_its_own_step_is_plain_training() -> None:
    _, weights = result_of("diloco", 1, "lr=1", "momentum=0")
    plain = crowd_of(1, 2 * INNER_STEPS)
    for step in range(1, 2 * INNER_STEPS + 1):
        plain.step(step)
    assert torch.allclose(weights, plain.weights, rtol=0, atol=1e-6)


def test_diloco_whose_exchanges_all_fail_stays_where_it_was() -> None:
    result, weights = result_of("diloco", 2, lose=1.0)
    assert torch.equal(weights, crowd_of(2).weights)
    assert (result.answers, result.missed, result.traffic.sent) == (0, 4, 0)


def test_delayed_diloco_applies_a_round_late() -> None:
    first, weights = result_of("diloco-delayed", 2, rounds=1)
    assert torch.equal(weights, crowd_of(2).weights)
    _, weights = result_of("diloco-delayed", 2, rounds=2)
    assert not torch.equal(weights, crowd_of(2).weights)
    assert first.answers == 2


def test_gossip_among_all_is_the_mean_of_all() -> None:
    _, mixed = result_of("gossip", 3, "neighbours=2", rounds=1)
    alone, _ = result_of("gossip", 3, "neighbours=2", rounds=1, lose=1.0)
    assert torch.allclose(mixed, mixed[:1].expand_as(mixed), rtol=0, atol=1e-6)
    assert alone.spread > 0


def test_a_method_with_several_mixing_steps_exchanges_as_often() -> None:
    once, _ = result_of("gossip", 4, "neighbours=3")
    thrice, _ = result_of("gossip", 4, "neighbours=3", "mixing_steps=3")
    assert (once.answers, thrice.answers) == (8, 24)
    assert thrice.traffic.sent == 3 * once.traffic.sent == 3 * 2 * 3 * 4  # rounds, neighbours, bytes


def test_traffic_is_counted_per_parameter() -> None:
    sent = {name: result_of(name, 2)[0].traffic.sent for name in ("ddp", "diloco", "streaming-diloco", "noloco")}
    assert sent == {"ddp": 8 * 4, "diloco": 2 * 4, "streaming-diloco": pytest.approx(2 * 4), "noloco": 2 * 8}


@pytest.mark.parametrize("name", ["noloco", "gossip"])
def test_replicas_train_while_their_exchange_is_under_way(name: str) -> None:
    waited, weights = result_of(name, 4)
    delayed, others = result_of(name, 4, "delay=2")
    assert (delayed.answers, delayed.missed) == (waited.answers, waited.missed)
    assert not torch.equal(weights, others)
    assert delayed.merged < delayed.curve[0]


@pytest.mark.parametrize("name", ["diloco-eager", "sparseloco", "noloco", "gossip"])
def test_the_seed_decides_everything(name: str) -> None:
    (first, weights), (second, again) = (result_of(name, 3, lose=0.3, seed=5) for _ in range(2))
    assert first == second
    assert torch.equal(weights, again)
    assert result_of(name, 3, lose=0.3, seed=6)[0].curve != first.curve
