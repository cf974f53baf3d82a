"""The benchmarks run, and say what they found in the form that they promise. Their figures are not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.node.client.cli.round_lines import WIDE, lines

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
from allreduce import _result
from kit.fleet import Lap
laps = [Lap(9.0, 900, 1.0), Lap(1.0, 10, 0.0), Lap(3.0, 30, 0.0)]
result = _result("shoal", 2, 1, "fp32", laps)
assert (result.seconds, result.bytes, result.ok) == (2.0, 20, False), result
assert _result("shoal", 2, 1, "fp32", [Lap(9.0, None, 0.0), Lap(1.0, None, 0.0)]).bytes is None
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=BENCHMARKS, timeout=60)


def test_the_table_of_allreduces_compares_with_gloo_and_leaves_out_what_is_not_there() -> None:
    program = """
from allreduce_table import words
row = {"peers": 4, "mib": 256, "codec": "fp32", "shoal": 1.5, "gloo": 0.5, "shoal_by_gloo": 3.0}
assert words([row]).splitlines()[-1] == "| 4 x 256, fp32 | 1.5 | 0.5 |  | 3 |  |", words([row])
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=BENCHMARKS, timeout=60)


@pytest.mark.slow
def test_the_benchmark_of_deaths_says_how_much_longer_a_round_took() -> None:
    words = [
        "--peers",
        "3",
        "--mib",
        "2",
        "--times",
        "1",
        "--kinds",
        "kill",
        "--roles",
        "owner",
        "--when",
        "scatter",
        "--json",
    ]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "churn.py"), *words], capture_output=True, text=True, timeout=600
    )
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert (result["kind"], result["role"], result["when"]) == ("kill", "owner", "scatter")
    assert (result["times"], result["failed"]) == (1, 0), done.stderr
    assert 0 < result["again"] <= result["share"]
    assert result["calm"] > 0


@pytest.mark.slow
def test_the_benchmark_of_goodput_says_what_a_run_keeps_under_kills() -> None:
    words = ["--peers", "3", "--every", "8", "--seconds", "24", "--turns", "1", "--json"]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "goodput.py"), *words], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert (result["every"], result["turns"]) == (8.0, 1)
    assert result["of_calm"] > 0
    assert result["pause"] > 0


def test_a_case_of_deaths_is_good_if_it_was_right_soon_enough_and_cheap() -> None:
    program = """
from churn import Case, Strike, of_strikes
case, good = Case("kill", "owner", "scatter"), [Strike(0.5, later, 2.0, 2.5, True) for later in (0.2, 0.9, 5.0)]
result = of_strikes(case, good, 0)
assert (result.times, result.later, result.latest, result.calm) == (3, 0.9, 5.0, 0.5)
assert result.is_good
assert not of_strikes(case, [*good, Strike(0.5, 0.1, 2.6, 2.5, True)], 0).is_good
assert not of_strikes(case, [*good, Strike(0.5, 0.1, 2.0, 2.5, False)], 0).is_good
assert not of_strikes(case, good[1:], 0).is_good
assert not of_strikes(case, good, 1).is_good
assert not of_strikes(case, [], 0).is_good
assert of_strikes(Case("stop", "owner", "scatter"), good[1:], 0).is_good
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


@pytest.mark.slow
def test_the_dht_benchmark_says_in_one_line_what_it_found_warm_and_cold() -> None:
    words = ["--nodes", "4", "--records", "2", "--json"]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "dht.py"), *words], capture_output=True, text=True, timeout=240, check=False
    )
    [line] = done.stdout.splitlines()
    result = json.loads(line)
    rows = ["store", "get", "missing", "cold_store", "cold_get", "cold_missing", "crippled_get"]
    assert list(result) == ["system", "nodes", "records", "replicas", *rows, "right", "ok"], done.stderr
    assert all(0 < result[row]["median_ms"] <= result[row]["p95_ms"] for row in rows)
    assert all(result["right"][row] in ("2 of 2", "8 of 8") for row in rows if not row.endswith("store"))


def test_the_dht_benchmark_has_a_column_for_each_system() -> None:
    program = """
from dht import _ratios, _table
row = {"median_ms": 2.0, "p95_ms": 3.5}
ours = {"system": "shoal", "get": row, "cold_get": row, "crippled_get": row, "ok": True}
theirs = {"system": "hivemind", "get": {"median_ms": 8.0, "p95_ms": 9.0}, "ok": False}
table = _table([ours, theirs], [_ratios(ours, theirs)])
assert table[0].split() == "ms, median (p95) shoal, 15 replicas hivemind, 5 replicas shoal / hivemind".split()
[get] = [line for line in table if line.startswith("get ")]
assert get.split() == ["get", "2.0", "(3.5)", "8.0", "(9.0)", "0.25"], get
assert table[-1].startswith("WRONG: ") and "hivemind" in table[-1]
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=BENCHMARKS, timeout=60)


@pytest.mark.parametrize("name", ["round", "round-death"])
def test_the_pictures_of_rounds_are_drawn_from_what_lies_beside_them(tmp_path: Path, name: str) -> None:
    docs = BENCHMARKS.parent / "docs"
    told = tmp_path / f"{name}.json"
    told.write_bytes((docs / told.name).read_bytes())
    command = [sys.executable, str(BENCHMARKS / "round_timeline.py"), "--draw", str(told)]
    subprocess.run(command, check=True, timeout=60)
    assert told.with_suffix(".svg").read_text() == (docs / f"{name}.svg").read_text()


def test_the_words_in_the_document_are_those_of_the_picture() -> None:
    docs = BENCHMARKS.parent / "docs"
    told = json.loads((docs / "round-death.json").read_text(encoding="utf-8"))[-1]
    assert "\n".join(lines(told, WIDE, blocks=True)) in (docs / "rounds.md").read_text(encoding="utf-8")


def convergence(*words: str) -> str:
    command = [sys.executable, str(BENCHMARKS / "convergence.py"), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout


@pytest.mark.slow
def test_every_method_is_trained_beside_alone_and_joined_and_once_only(tmp_path: Path) -> None:
    words = ["--tiny", "--steps", "4", "--seeds", "1", "--jobs", "1", "--out", str(tmp_path)]
    said = convergence(*words)
    lines = [json.loads(line) for line in (tmp_path / "convergence.jsonl").read_text().splitlines()]
    names = [line["name"] for line in lines]
    assert names[:2] == ["alone", "joined"]
    assert len(names) == len(set(names)) == 11
    assert all(line["loss"] < 5.6 for line in lines)
    assert all(f"| `{name}` |" in said for name in names[2:])
    assert (tmp_path / "convergence.svg").read_text().count("joined") >= 1
    again = convergence(*words)
    assert again == said[said.index("| | validation") :]


@pytest.mark.slow
def test_the_larger_model_of_the_convergence_benchmark_trains(tmp_path: Path) -> None:
    convergence("--full", "--steps", "2", "--seeds", "1", "--only", "diloco", "--out", str(tmp_path))
    [line] = (tmp_path / "convergence.jsonl").read_text().splitlines()
    assert json.loads(line)["parameters"] > 3_000_000


def test_the_limit_of_lines_is_that_of_their_best_shares() -> None:
    program = """
from lab import limit
even = limit([(6e6, 6e6)] * 4, 6_000_000)
assert abs(even - 1.5) < 0.01, even
slow = limit([(6e6, 6e6)] * 3 + [(6e5, 6e6)], 6_000_000)
assert abs(slow - 10) < 0.01, slow
fast = limit([(6e6, 6e6)] * 3 + [(24e6, 24e6)], 6_000_000)
assert abs(fast - 1) < 0.01, fast
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=BENCHMARKS, timeout=60)
