"""benchmarks/utilisation.py: what it computes from the rounds that a member has seen; no laboratory is used."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from utilisation import CONTEXT, PACED, STEP, WORKER, H, pace


def seen(round: int, seconds: float, steps: int = H, exchange: float = 1.0) -> dict[str, Any]:
    own = {"tokens": steps * CONTEXT, "took_part": steps > 0}
    return {"round": round, "applied_at": 1000 + seconds + exchange, "seconds": exchange, **own}


def test_the_pace_is_that_of_the_rounds_that_count() -> None:
    rows = [seen(1, 0), seen(2, 50), *(seen(round, 50 + 4 * (round - 2)) for round in range(3, 10))]
    assert pace(rows, 3, 8) == pytest.approx(H / 4)


def test_a_round_that_was_passed_over_has_no_steps_whether_in_the_middle_or_at_an_end() -> None:
    rows = [seen(round, 4 * round) for round in range(1, 10)]
    without = [row for row in rows if row["round"] not in (3, 5)]
    assert pace(without, 3, 8) == pytest.approx(3 * H / (4 * 4))  # 6, 7 and 8, since the end of 4
    assert pace([row for row in rows if row["round"] != 8], 3, 8) == pytest.approx(H / 4)


def test_a_contribution_of_fewer_steps_counts_as_such() -> None:
    rows = [seen(3, 0), seen(4, 4, steps=H // 2), seen(5, 8, steps=0)]
    assert pace(rows, 3, 5) == pytest.approx(H / 2 / 8)


def test_an_exchange_that_training_does_not_wait_for_changes_nothing() -> None:
    rows = [seen(3, 0, exchange=3.0), seen(4, 4), seen(5, 8, exchange=0.5)]
    assert pace(rows, 3, 5) == pytest.approx(H / 4)


def test_who_has_seen_nothing_of_the_rounds_was_not_there() -> None:
    with pytest.raises(SystemExit, match="not there"):
        pace([seen(1, 0), seen(9, 30)], 3, 8)


def test_a_node_that_is_told_to_starts_the_paced_worker(tmp_path: Path) -> None:
    program = f"""
{PACED}
import json
from pathlib import Path
from shoal.node.training.checkpoint.keep import Keeping
from shoal.node.manifest.manifest import Manifest
from shoal.node.ipc.vectors import Sizes
own = settings.RunSettings(Path({str(tmp_path)!r}), 1, (), True, Keeping())
print(json.dumps([os.environ["SHOAL_STEP"], *own.worker(Manifest(name="tiny"), Sizes(1)).program]))
"""
    said = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    step, *argv = json.loads(said)
    assert float(step) == STEP
    assert argv == [sys.executable, str(WORKER)]
