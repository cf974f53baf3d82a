"""Rounds between homes of which one has a poor uplink: it is known after one round, and its member only contributes.

This is the benchmark itself, over slower lines, so that a busy machine can keep up. How near to the limit it comes is
printed, not judged; but what the peers found out of their lines is.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.netlab.lab import Lab

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "lab.py"
MBIT = 20.0


@pytest.mark.slow
@pytest.mark.patient
def test_a_poor_uplink_is_found_out_and_spared(lab: Lab) -> None:
    words = ["--cases", "slow,alike", "--mib", "4", "--mbit", str(MBIT), "--rounds", "2", "--json"]
    done = subprocess.run([sys.executable, str(BENCHMARK), *words], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    slow, alike = map(json.loads, done.stdout.splitlines())
    print(f"\nlimit {slow['limit']} s; shares by links {slow['rounds']}, alike {alike['rounds']}: {slow['known']}")
    ups = [up for up, _ in slow["known"]]
    assert ups[-1] == pytest.approx(MBIT / 10, rel=0.4)
    assert min(ups[:-1]) > 2 * ups[-1]
    assert slow["seconds"] < alike["seconds"]
