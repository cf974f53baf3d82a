"""Warm starts, reference trainings, and measurements along the way."""

from __future__ import annotations

import pytest
import torch

from shoal.node.lab.registry import WrongSetting
from shoal.node.lab.study import Experiment, Result, prepare, run
from shoal.node.lab.virtual_workers import VirtualWorkers
from shoal.node.manifest.manifest import Manifest
from tests.unit.lab.lab_kit import CORPUS, INNER_STEPS, TEXT, TINY


def trained(training: Experiment, every: int | None = None, manifest: Manifest = TINY) -> tuple[Result, torch.Tensor]:
    study, crowd = prepare(training, manifest, TEXT)
    return run(study, crowd, CORPUS, training.steps, 200, every=every), study.weights


def test_steps_made_together_are_those_of_ddp() -> None:
    """The decay of all but the norms' gains, too, which is strong here."""
    decayed = TINY.model_copy(update={"method": TINY.method.model_copy(update={"weight_decay": 1.0})})
    warm, ddp = (
        trained(training, manifest=decayed)[1]
        for training in (Experiment("diloco", workers=3, steps=6, warm=6), Experiment("ddp", workers=3, steps=6))
    )
    assert torch.allclose(warm, ddp, rtol=0, atol=1e-5)
    assert torch.equal(warm[0], warm[2])


def test_a_method_begins_where_the_warm_start_has_led() -> None:
    """DiLoCo of outer rate 1 and no momentum: after a round all stand at the mean of where each has come."""
    _, weights = trained(Experiment("diloco", ("lr=1", "momentum=0"), workers=2, steps=3 + INNER_STEPS, warm=3))
    crowd = VirtualWorkers(TINY, TEXT, 2, 3 + INNER_STEPS)
    for step in range(1, 4 + INNER_STEPS):
        crowd.step(step, together=step <= 3)
    assert torch.allclose(weights, crowd.weights.mean(0).expand_as(weights), rtol=0, atol=1e-6)


def test_a_warm_start_costs_what_ddp_costs() -> None:
    result, _ = trained(Experiment("noloco", workers=2, steps=3 + INNER_STEPS, warm=3))
    assert result.traffic == (3 * 2 + 8, 3 * 2 + 8, 3 * 4 + 8)
    assert result.greatest == 8
    assert result.answers == 2


def test_what_is_made_together_anyway_has_no_warm_start() -> None:
    with pytest.raises(WrongSetting, match="ddp needs no warm start"):
        prepare(Experiment("ddp", warm=1), TINY, TEXT)


def test_a_contribution_may_be_much_smaller_than_what_comes_back() -> None:
    result, _ = trained(Experiment("sparseloco", workers=2, steps=INNER_STEPS))
    assert 0 < 4 * result.traffic.contributed < result.traffic.answered == 2
    assert result.traffic.sent == result.traffic.contributed + result.traffic.answered


def test_the_greatest_exchange_of_fragments_is_that_of_the_greatest_fragment() -> None:
    whole, _ = trained(Experiment("diloco", workers=2, steps=2 * INNER_STEPS))
    parts, _ = trained(Experiment("streaming-diloco", workers=2, steps=2 * INNER_STEPS))
    assert whole.greatest == 4
    assert 4 / 3 < parts.greatest < 4


def test_one_worker_that_joins_the_batches_is_all_workers_together() -> None:
    unclipped = TINY.model_copy(update={"method": TINY.method.model_copy(update={"clip": 1e9})})
    joined, _ = prepare(Experiment("diloco", workers=1, lanes=3, steps=4, warm=4), unclipped, TEXT)
    apart, _ = prepare(Experiment("diloco", workers=3, steps=4, warm=4), unclipped, TEXT)
    losses = [(joined.advance(), apart.advance()) for _ in range(4)]
    assert torch.allclose(joined.weights[0], apart.weights[0], rtol=0, atol=1e-4)
    assert all(one == pytest.approx(other, abs=1e-4) for one, other in losses)
    assert joined.traffic.sent == 0


def test_the_averaged_model_is_looked_at_now_and_then_and_at_the_end() -> None:
    result, weights = trained(Experiment("gossip", workers=3, steps=10), every=4)
    assert [step for step, _ in result.validation] == [4, 8, 10]
    assert result.validation[-1][1] == result.merged
    assert not torch.equal(weights[0], weights[1])
    unseen, again = trained(Experiment("gossip", workers=3, steps=10))
    assert torch.equal(weights, again)  # looking changes nothing
    assert unseen.validation == ((10, unseen.merged),)
