"""`make experts` through real daemons with two small parts, and what it and HDEE's table promise of fairness."""

from __future__ import annotations

import json
import subprocess
import sys
from math import isfinite
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FAMILY = """
name = "tiny"
[model]
dim = 16
layers = 1
heads = 2
kv_heads = 1
hidden = 32
context = 32
[method]
name = "experts"
inner_steps = 4
batch = 2
warmup_steps = 2
[experts]
steps = 16
publish_every = 2
[[experts.parts]]
name = "desktop"
only = ["tkinter/*", "idlelib/*"]
[[experts.parts]]
name = "encodings"
only = ["encodings/*"]
"""


@pytest.fixture
def family(tmp_path: Path) -> Path:
    path = tmp_path / "family.toml"
    path.write_text(FAMILY)
    return path


def program(text: str, *arguments: object) -> None:
    """Run a program beside the benchmarks."""
    argv = [sys.executable, "-c", text, *map(str, arguments)]
    done = subprocess.run(argv, cwd=BENCHMARKS, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_two_peers_train_a_seed_then_experts_apart_and_a_table_says_what_they_are_worth(
    family: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ["--family", family, "--seed-steps", "8", "--held-out", "2000", "--out", out]
    argv = [sys.executable, str(BENCHMARKS / "experts.py"), *map(str, words)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    facts = json.loads((out / "report.json").read_text())
    together, apart, by_chance = facts["phases"].values()
    assert together["traffic"]["training"] > 10_000, "two peers exchange parameters of 6,448 numbers"
    assert (apart["traffic"]["training"], by_chance["traffic"]["training"]) == (0, 0)
    assert apart["traffic"]["others"] > 0
    assert set(facts["dense_tokens"].values()) == {2 * 16 * 2 * 32}, "as many as both experts together"
    rows = facts["losses"]
    assert {"seed", "ensemble", "ensemble, top 1", "average", "PCB", "by chance, ensemble", "expert desktop"} <= set(
        rows
    )
    assert all(set(row) == {"desktop", "encodings"} and all(map(isfinite, row.values())) for row in rows.values())
    assert rows["expert desktop"]["desktop"] < rows["expert encodings"]["desktop"]
    assert (out / "report.md").read_text() in done.stdout + "\n"
    assert (out / "tiny" / "ensemble.json").exists()


@pytest.mark.slow
def test_parts_whose_held_out_texts_others_train_on_are_refused(family: Path) -> None:
    family.write_text(FAMILY.replace('only = ["encodings/*"]', 'only = ["pydoc_data/*"]'))
    program(
        """
import sys
from pathlib import Path
from kit.experts_recipe import Recipe
from kit.experts_table import domains
from shoal.node.manifest.manifest import load_manifest
from shoal.protocol.base.errors import LocalError
family = load_manifest(Path(sys.argv[1]))
try:
    domains(family, Recipe(family, 8).dense(16), 1000)
except LocalError as error:
    assert "has no held-out text" in str(error), error
else:
    raise SystemExit("the end of the manual's only text would be scored, which a dense model trains on")
""",
        family,
    )


@pytest.mark.slow
def test_arms_of_hdee_have_one_compute_and_the_first_by_a_rule_gets_most() -> None:
    program(
        """
from pathlib import Path
from hdee import ROOT, Expert, _arms, _compute
from shoal.node.experts.parts import experts_of
from shoal.node.manifest.manifest import load_manifest
family = load_manifest(ROOT / "examples" / "experts.toml")
names = [part.name for part in experts_of(family).parts]
arms = _arms(family, {"loss": names, "fall": names[::-1]})
fair = _compute(family, arms["homogeneous"])
for name, arm in arms.items():
    assert list(arm) == names, "experts come in the family's order, as the prior does"
    assert abs(_compute(family, arm) / fair - 1) < 0.04, (name, _compute(family, arm), fair)
    assert all(each.steps % family.method.inner_steps == 0 for each in arm.values()), arm
for rule, (most, *others, least) in (("loss", names), ("fall", names[::-1])):
    sizes, steps = arms[f"sizes by {rule}"], arms[f"steps by {rule}"]
    assert (sizes[most].size, sizes[least].size) == ("large", "small")
    assert steps[most].steps > steps[others[0]].steps > steps[least].steps
"""
    )
