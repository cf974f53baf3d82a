"""When a member that applies results gets a later state instead: the rules of lag.py, one by one."""

from __future__ import annotations

import pytest

from shoal.protocol.member.lag import FEW, MOST_DOUBLINGS, SETTLING, TIMES, Lag


def most_ahead(lag: Lag, now: float = 1000.0) -> int:
    """The most results that may be ahead before it gives up."""
    return next(behind for behind in range(1, 10_000) if lag.is_hopeless(now, behind, is_reading=False)) - 1


def begun(behind: int) -> Lag:
    lag = Lag()
    assert not lag.is_hopeless(0.0, behind, is_reading=False)
    return lag


@pytest.mark.parametrize(("behind", "bound"), [(1, TIMES * FEW), (FEW, TIMES * FEW), (50, TIMES * 50)])
def test_twice_as_many_as_at_first_may_be_ahead(behind: int, bound: int) -> None:
    assert most_ahead(begun(behind)) == bound


def test_what_is_ahead_at_first_is_known_once_the_log_is_read() -> None:
    lag = Lag()
    assert not lag.is_hopeless(0.0, 1, is_reading=True)
    assert not lag.is_hopeless(1.0, 100, is_reading=False)
    assert most_ahead(lag) == TIMES * 100


def test_a_message_that_was_lost_is_no_reason() -> None:
    lag = begun(1)
    assert not lag.is_hopeless(SETTLING - 0.1, 1000, is_reading=False)
    assert lag.is_hopeless(SETTLING, 1000, is_reading=False)


def test_each_state_doubles_that_until_it_stands_where_the_others_do() -> None:
    lag, bounds = begun(1), list[int]()
    for _ in range(MOST_DOUBLINGS + 2):
        bounds.append(most_ahead(lag))
        lag.give_up()
        lag.begin()
        assert not lag.is_hopeless(0.0, 1, is_reading=False)
    assert bounds == [TIMES * FEW * 2**doublings for doublings in (0, 1, 2, 3, 3)]
    lag.end()
    assert not lag.is_hopeless(0.0, 1, is_reading=False)
    assert most_ahead(lag) == TIMES * FEW
