"""Whole swarms that decide by the log, under faults: no promise is broken, and all members come together again.

A failing seed prints itself and its fault plan; `python -m tests.simulation.agreed_campaign SEED SEED+1` runs it alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.simulation import agreed_campaign
from tests.simulation.campaign import KINDS, PHASES
from tests.simulation.test_rounds import run_all, table

QUICK = [*range(len(KINDS) * len(PHASES)), 65]  # each kind of fault is aimed at each phase once
EXCUSED = 0.08  # of the runs, at most, for whom nothing could go on in peace, for a stated reason


@pytest.mark.parametrize("seeds", [QUICK, pytest.param(range(300), marks=pytest.mark.slow)], ids=len)
def test_no_promise_is_broken_whatever_strikes(seeds: Sequence[int], capsys: pytest.CaptureFixture[str]) -> None:
    reports = run_all(agreed_campaign.report_on, seeds)
    failures = [report.failure for report in reports if report.failure]
    faults: Counter[tuple[str, str]] = sum((report.faults for report in reports), Counter())
    together = sorted(report.peace.took for report in reports)
    rounds, excused = sum(report.rounds for report in reports), sum(report.peace.excuse != "" for report in reports)
    with capsys.disabled():
        print(f"\n{len(reports)} seeds: {rounds} rounds, together {together[len(together) // 2]:.1f} s after the last")
        print(f"fault in the median, {together[-1]:.1f} s at most; {excused} excused\n{table(faults)}")
    assert not failures, "\n\n".join(failures[:3])
    assert excused <= EXCUSED * len(reports)
    hit = [sum(faults[kind, phase] for kind in KINDS) for phase in PHASES]
    assert all(hit), table(faults)
    assert len(reports) < 100 or all(faults[kind, phase] for kind in KINDS for phase in PHASES), table(faults)
