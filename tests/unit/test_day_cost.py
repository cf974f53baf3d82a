"""What a day of a node's runs costs in traffic, by their pace; nothing is said where that is not known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.requirements import requirements
from shoal.node.run.run import Run
from shoal.node.run.view import day_cost

MANIFEST = Manifest(name="ours")


def run(pace: float = 60.0, others: int = 3, **changes: Any) -> Run:
    membership = SimpleNamespace(alive=lambda: ["peer"] * others)
    usual = {"failure": "", "is_finished": False, "manifest": MANIFEST, "commits": SimpleNamespace(pace=pace)}
    return cast(Run, SimpleNamespace(**usual | {"member": SimpleNamespace(membership=membership)} | changes))


def test_a_day_is_as_many_rounds_as_the_pace_allows() -> None:
    each = requirements(MANIFEST, 4)
    assert each.sent > 0
    assert day_cost([run()]) == {"sent": 1440 * each.sent, "received": 1440 * each.received}
    assert day_cost([run(), run(pace=120.0)]) == {"sent": 2160 * each.sent, "received": 2160 * each.received}


@pytest.mark.parametrize("runs", [[], [run(pace=0.0)], [run(others=0)], [run(is_finished=True)], [run(failure="full")]])
def test_nothing_is_said_of_runs_without_a_pace_or_without_rounds(runs: list[Run]) -> None:
    assert day_cost(runs) is None
