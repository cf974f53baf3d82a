"""Whole swarms under faults: no promise is broken, rounds commit, and all members come together again.

A failing seed prints itself and its fault plan; `python -m tests.simulation.campaign SEED` runs it alone.
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
from typing import TypeVar

import pytest

from tests.simulation import campaign, single_death
from tests.simulation.campaign import KINDS, PHASES, Report

R = TypeVar("R")
QUICK = [
    *range(len(KINDS) * len(PHASES)),
    48,
]  # each kind of fault is aimed at each phase once; 48 hits what 20 misses
ENOUGH = 0.95  # of the rounds begun must be decided
EXCUSED = 0.05  # of the runs, at most, for whom nothing could go on in peace, for a stated reason
AT_ONCE = 0.9  # of those decided, in the first attempt, whatever strikes


def run_all(work: Callable[[int], R], seeds: Sequence[int]) -> list[R]:
    """Run seeds; if they are many, in as many processes as this machine has cores for, two at most."""
    if len(seeds) < 100:
        return list(map(work, seeds))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1), context, initializer=gc.freeze) as pool:
        return list(pool.map(work, seeds, chunksize=5))


@pytest.mark.parametrize("seeds", [QUICK, pytest.param(range(300), marks=pytest.mark.slow)], ids=len)
def test_no_promise_is_broken_whatever_strikes(seeds: Sequence[int], capsys: pytest.CaptureFixture[str]) -> None:
    reports = run_all(campaign.report_on, seeds)
    failures = [report.failure for report in reports if report.failure]
    faults: Counter[tuple[str, str]] = sum((report.faults for report in reports), Counter())
    with capsys.disabled():
        print(f"\n{summary(reports)}\n{table(faults)}")
    assert not failures, "\n\n".join(failures[:3])
    begun, decided = sum(report.begun for report in reports), sum(report.rounds for report in reports)
    assert decided >= ENOUGH * begun
    assert sum(report.at_once for report in reports) >= AT_ONCE * decided
    assert sum(report.peace.excuse != "" for report in reports) <= EXCUSED * len(reports), summary(reports)
    assert min(shapes(reports).values()) >= 0.02 * len(reports), summary(reports)
    assert all(faults[kind, phase] for kind in KINDS for phase in PHASES), table(faults)


@pytest.mark.parametrize("seeds", [range(90), pytest.param(range(180), marks=pytest.mark.slow)], ids=len)
def test_one_death_never_aborts_a_round(seeds: range, capsys: pytest.CaptureFixture[str]) -> None:
    deaths = run_all(single_death.report_on, seeds)
    failures = [death.failure for death in deaths if death.failure]
    struck = [death for death in deaths if death.struck]
    with capsys.disabled():
        took, again = sorted(death.took for death in struck), sum(death.resent > 0 for death in struck)
        print(
            f"\n{len(struck)} single deaths; the round is everywhere {took[len(took) // 2]:.2f} s later in the median,"
        )
        print(f"{took[-1]:.2f} s at most (virtual); in {again} runs chunks were sent again")
    assert not failures, "\n\n".join(failures[:3])
    seen = Counter((death.role, death.moment) for death in struck)
    assert all(seen[role, moment] for role in single_death.ROLES for moment in single_death.MOMENTS), seen
    assert sum(death.had_roster for death in struck) > len(struck) // 2


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


# -- what is printed ----------------------------------------------------------------------------------------


def shapes(reports: list[Report]) -> dict[str, int]:
    """How many swarms were of which kind."""
    return {
        "had keepers": sum(bool(report.shape.keepers) for report in reports),
        "had members that nobody can dial": sum(bool(report.shape.unreachable) for report in reports),
        "fell below their minimum of members": sum(report.waited for report in reports),
        "were of two": sum(report.peers == 2 for report in reports),
    }


def summary(reports: list[Report]) -> str:
    """The whole run in a few lines."""
    begun, decided = sum(report.begun for report in reports), sum(report.rounds for report in reports)
    at_once = sum(report.at_once for report in reports)
    revived = sum(report.peace.revived > 0 for report in reports)
    excused = {report.seed: report.peace.excuse for report in reports if report.peace.excuse}
    attempts = sum(len({abort[:2] for abort in report.aborts}) for report in reports)
    together = sorted(report.peace.took for report in reports)
    return "\n".join(
        (
            f"{len(reports)} seeds, {sum(report.peers for report in reports)} peers: {begun} rounds begun, {decided} "
            f"decided ({decided / begun:.1%}), {at_once / max(1, decided):.1%} of them in the first attempt;",
            f"{attempts} attempts aborted; {', '.join(f'{count} {what}' for what, count in shapes(reports).items())};",
            f"for {revived} the dead were started again; all were together after the last fault in "
            f"{together[len(together) // 2]:.1f} s in the median, {together[-1]:.1f} s at most (virtual), but for "
            f"{len(excused)} that are excused:",
            *(f"  seed {seed}: {why}" for seed, why in excused.items()),
        )
    )


def table(faults: Counter[tuple[str, str]]) -> str:
    """How often each kind of fault fell in each phase of its victim."""
    phases = (*PHASES, "matching", "training", "syncing")
    rows = [f"{'':10}" + "".join(f"{phase:>10}" for phase in phases)]
    rows += [f"{kind:10}" + "".join(f"{faults[kind, phase]:10}" for phase in phases) for kind in KINDS]
    return "\n".join(rows)
