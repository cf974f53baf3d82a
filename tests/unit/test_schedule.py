"""Warm-up, stable, decay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.manifest import Manifest, MethodSpec, RoundSpec
from shoal.node.schedule import global_step, inner_lr, lr_factor


def test_rises_stays_and_falls() -> None:
    factors = [lr_factor(step, warmup=4, total=10, decay_share=0.4) for step in range(10)]
    assert factors == [0.25, 0.5, 0.75, 1, 1, 1, 1, 0.75, 0.5, 0.25]


def test_never_falls_without_a_last_round() -> None:
    assert {lr_factor(step, warmup=0, total=None, decay_share=1.0) for step in (0, 10, 10**9)} == {1.0}


def test_the_lower_one_counts_where_warmup_and_decay_overlap() -> None:
    assert [lr_factor(step, warmup=4, total=4, decay_share=1.0) for step in range(4)] == [0.25, 0.5, 0.5, 0.25]


@given(st.integers(0, 300), st.integers(0, 50), st.integers(1, 300), st.floats(0, 1))
def test_is_positive_up_to_the_last_step_and_zero_after_a_decay(
    step: int, warmup: int, total: int, share: float
) -> None:
    factor = lr_factor(step, warmup=warmup, total=total, decay_share=share)
    decays = round(share * total) > 0
    assert 0 <= factor <= 1
    assert (factor == 0) == (decays and step >= total)


def test_a_round_continues_where_the_last_one_ended() -> None:
    assert [global_step(round, step, 3) for round in (1, 2) for step in range(3)] == list(range(6))


def test_a_newcomer_trains_at_the_rate_of_the_others() -> None:
    method = MethodSpec(inner_steps=10, inner_lr=1e-3, warmup_steps=10, decay_share=0.5)
    manifest = Manifest(name="x", method=method, rounds=RoundSpec(last=10))
    assert inner_lr(manifest, 1, 0) == pytest.approx(1e-4)
    assert inner_lr(manifest, 3, 0) == pytest.approx(1e-3)
    assert inner_lr(manifest, 10, 9) == pytest.approx(1e-3 / 50)
    endless = Manifest(name="x", method=method)
    assert inner_lr(endless, 10_000, 0) == pytest.approx(1e-3)
