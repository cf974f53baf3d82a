"""The benchmarks run, and say what they found in the form that they promise. Their figures are not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_the_allreduce_benchmark_compares_right_results() -> None:
    words = ["--peers", "2", "--mib", "1", "--rounds", "1", "--against", "gloo", "--json"]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "allreduce.py"), *words], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    shoal, gloo = map(json.loads, done.stdout.splitlines())
    assert (shoal["system"], gloo["system"]) == ("shoal", "gloo")
    for result in (shoal, gloo):
        assert list(result) == ["system", "peers", "mib", "codec", "seconds", "bytes", "ok"]
        assert (result["peers"], result["mib"], result["codec"], result["ok"]) == (2, 1, "fp32", True)
        assert result["seconds"] > 0
        assert result["bytes"] is None or result["bytes"] > 1 << 20  # of 2 MiB, and what else the loopback has


def test_the_warm_up_must_be_right_too_and_is_not_measured() -> None:
    program = """
from argparse import Namespace
from allreduce import _result
from kit.fleet import Lap
options = Namespace(peers=2, mib=1, codec="fp32")
laps = [Lap(9.0, 900, 1.0), Lap(1.0, 10, 0.0), Lap(3.0, 30, 0.0)]
result = _result("shoal", options, laps)
assert (result.seconds, result.bytes, result.ok) == (2.0, 20, False), result
assert _result("shoal", options, [Lap(9.0, None, 0.0), Lap(1.0, None, 0.0)]).bytes is None
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=BENCHMARKS, timeout=60)


def test_a_wrong_mean_is_noticed() -> None:
    program = """
import numpy as np
from kit.vectors import TOLERANCE, mean_error, vector
mean = (vector(1, 1, 0, 3000) + vector(1, 1, 1, 3000)) / 2
assert mean_error(mean, 1, 1, 2) <= TOLERANCE["fp32"]
mean[2999] += 0.1
assert mean_error(mean, 1, 1, 2) > TOLERANCE["fp32"]
mean[0] = np.nan
assert mean_error(mean, 1, 1, 2) == float("inf")
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=BENCHMARKS, timeout=60)
