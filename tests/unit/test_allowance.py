"""Allowances: a burst, a rate over time, debts, and a table that stays bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.protocol.base.allowance import Allowance, Allowances


def test_a_burst_is_granted_and_then_the_rate() -> None:
    allowance = Allowance(burst=3, rate=2)
    assert [allowance.take(100.0) for _ in range(4)] == [True, True, True, False]
    assert not allowance.take(100.4)
    assert allowance.take(100.5)
    assert [allowance.take(1000.0) for _ in range(4)] == [True, True, True, False]


def test_what_was_not_needed_is_given_back_but_never_more_than_the_burst() -> None:
    allowance = Allowance(burst=1, rate=1)
    assert allowance.take(0.0)
    for _ in range(5):
        allowance.give_back()
    assert [allowance.take(0.0), allowance.take(0.0)] == [True, False]


def test_a_debt_says_how_long_it_takes_to_pay() -> None:
    allowance = Allowance(burst=1.0, rate=0.25)
    assert allowance.owe(0.0, 0.75) == 0.0
    assert allowance.owe(0.0, 0.5) == pytest.approx(1.0)
    assert allowance.owe(1.0, 0.0) == pytest.approx(0.0)


def test_a_clock_that_jumps_back_gives_nothing() -> None:
    allowance = Allowance(burst=1, rate=1)
    assert allowance.take(50.0)
    assert not allowance.take(10.0)
    assert allowance.take(11.0)


@given(st.lists(st.floats(0.0, 1.0), max_size=60))
def test_no_more_is_ever_granted_than_burst_and_rate_allow(pauses: list[float]) -> None:
    allowance, now, granted = Allowance(burst=5, rate=3), 0.0, 0
    for pause in pauses:
        now += pause
        granted += allowance.take(now)
    assert granted <= 5 + 3 * now + 1e-6


def test_each_key_has_its_own_and_the_table_is_bounded() -> None:
    table = Allowances[str](burst=1, rate=1, most=2)
    assert table.of("a").take(0.0)
    assert not table.of("a").take(0.0)
    assert table.of("b").take(0.0)
    assert not table.of("a").take(0.0)
    table.of("c")  # forgets b, which was not asked about for longest
    assert not table.of("a").take(0.0)
    assert table.of("b").take(0.0)
