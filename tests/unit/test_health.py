"""The verdict of a health check on a node's status."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.node.api.status import verdict
from shoal.node.base.exits import Exit
from shoal.node.run.view import broken_row, restoring_row

BEGUN = {"round": 3, "first_round": 1, "is_creator": True, "phase": "training", "failure": None, "members": 1}
FRESH = BEGUN | {"round": 0, "phase": "matching"}
RESUMED = FRESH | {"round": 8, "first_round": 9}
SYNCING = FRESH | {"phase": "syncing"}
JOINED = FRESH | {"is_creator": False}
RESTING = BEGUN | {"is_resting": True}
FAILED = BEGUN | {"failure": "the disk is full"}


@pytest.mark.parametrize(
    ("state", "obstacle", "runs", "code"),
    [
        ("SOLO", None, [], Exit.OK),  # a bootstrap node
        ("SOLO", None, [FRESH], Exit.OK),  # that has created a run, and waits for the first to join
        ("SOLO", None, [RESUMED], Exit.OK),
        ("SOLO", None, [RESUMED | {"round": 9}], Exit.ALONE),
        ("SOLO", None, [SYNCING], Exit.ALONE),  # it lost the state that it founded the run from
        ("CONNECTED", None, [SYNCING], Exit.ALONE),  # connected with others, but not with the run's
        ("CONNECTED", None, [SYNCING | {"members": 2}], Exit.OK),
        ("SOLO", None, [restoring_row("ab" * 32)], Exit.FAILED_RUN),
        ("CONNECTED", None, [BEGUN, restoring_row("ab" * 32)], Exit.FAILED_RUN),
        ("CONNECTED", None, [broken_row("ab" * 32, "damaged")], Exit.FAILED_RUN),
        ("SOLO", None, [BEGUN], Exit.ALONE),
        ("SOLO", None, [JOINED], Exit.ALONE),
        ("SOLO", None, [BEGUN | {"phase": "finished"}], Exit.OK),
        ("SOLO", None, [RESTING], Exit.OK),  # all were stopped, and the others come after us
        ("SOLO", None, [RESTING | {"phase": "syncing"}], Exit.OK),
        ("SOLO", "not yet in the run 1f0c8a2e: no such run", [RESTING], Exit.ALONE),
        ("SOLO", None, [RESTING, BEGUN], Exit.ALONE),
        ("SOLO", "rejoining: nobody has answered yet, tried 1 address", [FRESH], Exit.ALONE),
        ("CONNECTED", None, [JOINED], Exit.OK),
        ("CONNECTED", "not yet in the run 1f0c8a2e: no such run", [], Exit.FAILED_RUN),
        ("IN-ROUND", None, [BEGUN], Exit.OK),
        ("SPLIT", None, [BEGUN], Exit.SPLIT),
        ("IN-ROUND", None, [BEGUN, FAILED], Exit.FAILED_RUN),
        ("SPLIT", None, [FAILED], Exit.FAILED_RUN),
    ],
)
def test_verdicts(state: str, obstacle: str | None, runs: list[dict[str, Any]], code: Exit) -> None:
    status: Any = {"state": state, "obstacle": obstacle, "runs": runs}
    assert verdict(status) == code


def test_who_waits_for_the_others_is_healthy_until_somebody_else_is_where_they_were() -> None:
    status: Any = {"state": "SOLO", "obstacle": "rejoining: nobody has answered yet", "waits": True, "runs": [RESTING]}
    assert verdict(status) == Exit.OK
    assert verdict(status | {"waits": False}) == Exit.ALONE
    assert verdict(status | {"runs": [RESTING, BEGUN]}) == Exit.ALONE
