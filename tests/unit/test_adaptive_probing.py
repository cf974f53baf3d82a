"""Pauses between probes grow while nothing happens, and any news ends them."""

from __future__ import annotations

import random

import pytest

from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.timers import Timers
from shoal.protocol.membership.adaptive_probing import (
    EXCHANGES,
    EXCHANGES_MOST,
    EXCHANGES_VARY,
    MOST,
    MOST_OF_TWO,
    PROBES,
    PROBES_VARY,
    AdaptiveProbing,
)
from shoal.protocol.membership.members import MemberTable
from shoal.protocol.messages.membership import Entry
from tests.simulation.members import status


def entry(number: int) -> Entry:
    return Entry(PeerId(f"peer-{number:04d}"), 0, 0, (), status(), False, b"")


def probing_with_timers(others: int = 1, seed: int = 1) -> tuple[AdaptiveProbing, Timers]:
    timers, table = Timers("membership"), MemberTable(entry(0))
    for number in range(1, others + 1):
        table.adopt(0.0, entry(number))
    return AdaptiveProbing(table, timers, random.Random(seed)), timers


def are_about(pauses: list[float], usual: float, vary: float) -> bool:
    """Whether they fill the range around `usual`, and nothing else."""
    least, most = (1 - vary) * usual, (1 + vary) * usual
    return least <= min(pauses) < 0.95 * usual < 1.05 * usual < max(pauses) <= most


def probes(probing: AdaptiveProbing, now: float) -> list[float]:
    return [probing.probe_pause(now) for _ in range(200)]


def exchanges(probing: AdaptiveProbing, now: float) -> list[float]:
    return [probing.exchange_pause(now) for _ in range(200)]


def test_nobody_rests_before_the_first_news() -> None:
    probing, _ = probing_with_timers()
    assert not probing.is_resting(1e6)
    assert are_about(probes(probing, 1e6), PROBES, PROBES_VARY)
    assert are_about(exchanges(probing, 1e6), EXCHANGES, EXCHANGES_VARY)


@pytest.mark.parametrize(("others", "most"), [(1, MOST_OF_TWO), (2, MOST), (5, MOST)])
def test_pauses_grow_with_the_time_without_news_up_to_a_bound(others: int, most: float) -> None:
    probing, _ = probing_with_timers(others)
    probing.end_rest(100.0)
    assert are_about(probes(probing, 105.0), PROBES, PROBES_VARY)
    assert are_about(probes(probing, 125.0), 5 * PROBES, PROBES_VARY)
    assert are_about(probes(probing, 1e5), most * PROBES, PROBES_VARY)
    assert are_about(exchanges(probing, 1e5), EXCHANGES_MOST, EXCHANGES_VARY)
    assert probing.is_resting(1e5)
    probing.end_rest(1e5)
    assert not probing.is_resting(1e5 + 5)
    assert are_about(probes(probing, 1e5 + 5), PROBES, PROBES_VARY)


def test_who_hangs_on_others_does_not_rest_and_looks_for_them_at_once() -> None:
    probing, timers = probing_with_timers()
    probing.end_rest(0.0)
    timers.arm(1e5, MOST * PROBES, "probe")
    assert probing.let_rest(1e5, False)
    assert 1e5 <= (timers.due("probe") or 0.0) <= 1e5 + PROBES
    assert are_about(probes(probing, 2e5), PROBES, PROBES_VARY)
    assert are_about(exchanges(probing, 2e5), EXCHANGES, EXCHANGES_VARY)
    timers.arm(2e5, MOST * PROBES, "probe")
    assert not probing.let_rest(2e5, False), "it did not rest before"
    assert not probing.let_rest(2e5, True)


def test_news_bring_forward_what_was_put_off_and_nothing_else() -> None:
    probing, timers = probing_with_timers()
    timers.arm(0.0, MOST * PROBES, "probe")
    timers.arm(0.0, 10.0, "sync")
    probing.end_rest(5.0)
    assert 5.0 <= (timers.due("probe") or 0.0) <= 5.0 + PROBES
    assert timers.due("sync") == 10.0
    assert not probing.end_rest(5.5)


def test_after_the_same_news_not_all_ask_at_once() -> None:
    found = [probing_with_timers(seed=seed) for seed in range(200)]
    for probing, timers in found:
        timers.arm(0.0, EXCHANGES_MOST, "sync")
        timers.arm(0.0, MOST * PROBES, "probe")
        probing.end_rest(0.0)
    due = {name: [timers.due(name) or 0.0 for _, timers in found] for name in ("probe", "sync")}
    assert are_about(due["sync"], EXCHANGES, EXCHANGES_VARY)
    assert min(due["probe"]) < 0.1 * PROBES < 0.9 * PROBES < max(due["probe"]) <= PROBES


@pytest.mark.parametrize(("others", "times"), [(16, 1.0), (32, 1.0), (64, 2.0), (1024, 6.0)])
def test_large_groups_exchange_less_often_whatever_the_news(others: int, times: float) -> None:
    probing, timers = probing_with_timers(others)
    assert are_about(exchanges(probing, 0.0), times * EXCHANGES, EXCHANGES_VARY)
    timers.arm(0.0, times * EXCHANGES * (1 + EXCHANGES_VARY), "sync")
    assert not probing.end_rest(0.0), "it is due as usual in such a group"
    timers.arm(0.0, times * EXCHANGES_MOST, "sync")
    probing.end_rest(0.0)
    due = timers.due("sync") or 0.0
    assert (1 - EXCHANGES_VARY) * times * EXCHANGES <= due <= (1 + EXCHANGES_VARY) * times * EXCHANGES
