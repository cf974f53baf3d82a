"""The reference trainings with which a swarm is compared."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from shoal.node.manifest.manifest import DataSpec, Manifest, ModelSpec
from shoal.node.manifest.method import MethodSpec
from shoal.node.training.trainer.baseline import best, gap_recovered, references, run

TINY = Manifest(
    name="tiny",
    model=ModelSpec(dim=16, layers=1, heads=2, kv_heads=1, hidden=24, context=16),
    data=DataSpec(name="files"),
    method=MethodSpec(inner_steps=4, batch=2, inner_lr=1e-2),
)


def test_both_are_trained_at_every_rate_of_the_same_grid() -> None:
    plan = references(TINY, members=3, rounds=5)
    assert [each.lanes for each in plan] == [(0, 1, 2)] * 3 + [(0,)] * 3
    assert [each.inner_lr for each in plan] == pytest.approx([0.0035, 0.007, 0.014] * 2)
    assert {each.manifest.rounds.last for each in plan} == {5}


def test_a_training_is_reproducible_and_depends_on_its_rate(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("so much depends upon a red wheel barrow\n" * 50)
    alone = references(TINY, members=2, rounds=3, data=[tmp_path])[3:]
    results = [run(each) for each in alone]
    assert results == [run(each) for each in alone]
    losses = [each.loss for each in results]
    assert len(set(losses)) == 3
    assert max(losses) < math.log(256)
    tokens, curve = zip(*results[0].curve, strict=True)
    assert tokens == (128, 256, 384)  # 4 steps of 2 samples of 16 bytes in each round
    assert curve[0] > curve[2]


def test_the_best_of_each_counts_and_a_diverged_one_never() -> None:
    joined, alone = references(TINY, members=2, rounds=1)[:3], references(TINY, members=2, rounds=1)[3:]
    results = list(zip([*joined, *alone], [math.nan, 1.5, 1.7, 2.5, math.nan, 2.4], strict=True))
    assert best(results) == (2.4, 1.5)


@pytest.mark.parametrize(("swarm", "expected"), [(2.0, 0.0), (1.0, 1.0), (1.75, 0.25), (2.5, -0.5)])
def test_gap_recovered(swarm: float, expected: float) -> None:
    assert gap_recovered(2.0, swarm, 1.0) == expected
