"""Whole swarms under faults: no promise is broken, rounds are decided, and all members come together again.

A failing seed prints itself and its fault plan; `python -m tests.simulation.campaign SEED SEED+1` runs it alone.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from tests.simulation import campaign, single_death
from tests.simulation.campaign import KINDS, PHASES

R = TypeVar("R")
QUICK = range(len(KINDS) * len(PHASES))  # each kind of fault is aimed at each phase once
EXCUSED = 0.05  # of the runs, at most, for whom nothing could go on in peace, for a stated reason


def run_all(work: Callable[[int], R], seeds: Sequence[int]) -> list[R]:
    """Run seeds; if they are many, in as many processes as this machine has cores for, two at most."""
    if len(seeds) < 100:
        return list(map(work, seeds))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1), context, initializer=gc.freeze) as pool:
        return list(pool.map(work, seeds, chunksize=5))


def test_a_round_is_joined_whose_trainers_are_all_gone() -> None:
    """Who only keeps the state was left in it, with nothing to add, and whoever stood ready was not let in."""
    campaign.run_seed(882)


@pytest.mark.parametrize(
    ("seeds", "sizes"),
    [(QUICK, campaign.TIERS["small"]), pytest.param(range(600), campaign.SIZES, marks=pytest.mark.slow)],
    ids=["quick", "all"],
)
def test_no_promise_is_broken_whatever_strikes(
    seeds: range, sizes: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    reports = run_all(partial(campaign.report_on, sizes=sizes), seeds)
    failures = [report.failure for report in reports if report.failure]
    faults: Counter[tuple[str, str]] = sum((report.faults for report in reports), Counter())
    together = sorted(report.peace.took for report in reports)
    rounds, excused = sum(report.rounds for report in reports), sum(report.peace.excuse != "" for report in reports)
    with capsys.disabled():
        print(f"\n{len(reports)} seeds: {rounds} rounds, together {together[len(together) // 2]:.1f} s after the last")
        print(f"fault in the median, {together[-1]:.1f} s at most; {excused} excused\n{table(faults)}")
    assert not failures, "\n\n".join(failures[:3])
    assert excused <= max(2, EXCUSED * len(reports))
    hit = [sum(faults[kind, phase] for kind in KINDS) for phase in PHASES]
    assert all(hit), table(faults)
    assert len(reports) < 100 or all(faults[kind, phase] for kind in KINDS for phase in PHASES), table(faults)


@pytest.mark.slow
@pytest.mark.parametrize(("tier", "count"), [("small", 600), ("middle", 60), ("large", 10)])
def test_no_promise_is_broken_in_swarms_of_any_size(tier: str, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    reports = run_all(partial(campaign.report_on, sizes=campaign.TIERS[tier]), range(20_000, 20_000 + count))
    with capsys.disabled():
        print(f"\n{tier}: {campaign.summary(campaign.line_of(report) for report in reports)}")
    failures = [report.failure for report in reports if report.failure]
    assert not failures, "\n\n".join(failures[:3])


def test_a_campaign_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    file, ran = tmp_path / "campaign", list[int]()

    def report_on(seed: int) -> campaign.Report:
        ran.append(seed)
        return campaign.Report(seed, 3, rounds=2, failure="a failure\nof two lines" if seed == 1 else "")

    campaign.go_on(range(3), file, report_on)
    file.write_text(file.read_text() + "3 5 torn")  # the power failed
    assert (
        campaign.summary(campaign.go_on(range(5), file, report_on).values())
        == "5 seeds: 10 rounds, 0 excused, 1 failed 1"
    )
    assert ran == [0, 1, 2, 3, 4]
    assert sorted(campaign.done_in(file)) == ran


@pytest.mark.parametrize("seeds", [range(24), pytest.param(range(360), marks=pytest.mark.slow)], ids=len)
def test_one_death_costs_no_more_than_the_dead_owners_share(seeds: range, capsys: pytest.CaptureFixture[str]) -> None:
    deaths = run_all(single_death.report_on, seeds)
    failures = [death.failure for death in deaths if death.failure]
    struck = [death for death in deaths if death.struck]
    with capsys.disabled():
        took, again = sorted(death.took for death in struck), sum(death.resent > 0 for death in struck)
        print(f"\n{len(struck)} single deaths; the round is everywhere {took[len(took) // 2]:.2f} s later in the")
        print(f"median, {took[-1]:.2f} s at most (virtual); in {again} runs chunks were sent again")
    assert not failures, "\n\n".join(failures[:3])
    seen = Counter((death.role, death.moment) for death in struck)
    assert {role for role, _ in seen} == set(single_death.ROLES)
    assert {moment for _, moment in seen} == set(single_death.MOMENTS), seen


def test_the_same_seed_gives_the_same_trace_whatever_the_hash_seed() -> None:
    """Nothing may depend on the order of a set, on the clock, or on who ran before."""
    command = [sys.executable, "-c", "from tests.simulation.campaign import run_seed; print(run_seed(3).trace)"]
    traces = []
    for hash_seed in ("0", "1"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
        traces.append(done.stdout.strip())
    assert traces[0]
    assert traces[0] == traces[1]


def table(faults: Counter[tuple[str, str]]) -> str:
    """How often each kind of fault fell in each phase of its victim."""
    phases = (*PHASES, "matching", "training", "syncing")
    rows = [f"{'':10}" + "".join(f"{phase:>10}" for phase in phases)]
    rows += [f"{kind:10}" + "".join(f"{faults[kind, phase]:10}" for phase in phases) for kind in KINDS]
    return "\n".join(rows)
