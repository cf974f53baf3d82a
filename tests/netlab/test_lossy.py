"""Several sockets to one peer: used where random loss makes TCP slow, and only there.

This is the benchmark itself, with a TCP that does so. What it gains is printed, not judged: a busy machine has no say.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.protocol.net.bulk.carrier import MAX_SOCKETS
from tests.netlab.lab import Lab

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "lab.py"


@pytest.mark.slow
@pytest.mark.patient
def test_a_path_that_one_connection_does_not_fill_is_found_out(lab: Lab) -> None:
    words = ["--cases", "even,lossy", "--tcp", "cubic", "--mib", "12", "--mbit", "30", "--rounds", "4", "--json"]
    done = subprocess.run([sys.executable, str(BENCHMARK), *words], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    even, lossy = map(json.loads, done.stdout.splitlines())
    print(f"\nof even lines {even['rounds']} s, sockets {even['sockets']}; of lossy ones {lossy['rounds']} s")
    assert even["sockets"] == 1
    assert 1 < lossy["sockets"] <= MAX_SOCKETS
