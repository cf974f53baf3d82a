"""Warm-up, stable, decay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.method import MethodSpec
from shoal.node.training.methods.schedule import lr_factor, rate


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


def test_a_newcomer_trains_at_the_rate_of_the_others() -> None:
    method = MethodSpec(inner_steps=10, inner_lr=1e-3, warmup_steps=10, decay_share=0.5)
    manifest = Manifest(name="x", method=method)
    assert rate(manifest, 0, 100) == pytest.approx(1e-4)
    assert rate(manifest, 20, 100) == pytest.approx(1e-3)
    assert rate(manifest, 99, 100) == pytest.approx(1e-3 / 50)
    assert rate(manifest, 10**6, None) == pytest.approx(1e-3)
