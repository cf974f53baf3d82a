"""Whether a node is healthy, from its `status`: the exit code of `shoal status --exit-code`, for health checks.

Worst first; what is not listed is healthy, so also a bootstrap node that is in no run:

    FAILED_RUN  a run has ended on this node, or its worker has for good, or it is not in a run that it should be
                in, or not yet
    SPLIT       too few of a run's members are reachable
    ALONE       a run that this node should be in has others, and none of them answers

The creator of a run whose first round is not committed is waiting, not alone, unless it lacks the state to begin with;
so is a node that has kept a run while all its nodes were stopped, and is the first to be back. Who pauses because its
owner's daily volume is used up is as healthy as can be.
"""

from __future__ import annotations

from typing import Any

from shoal.node.exits import Exit
from shoal.node.sentence import is_first_back, is_over

Answer = dict[str, Any]


def verdict(status: Answer) -> Exit:
    """The exit code that stands for an answer to `status`."""
    runs = status["runs"]
    if status.get("paused"):
        return Exit.OK
    if any(run.get("failure") or run.get("worker_failure") for run in runs):
        return Exit.FAILED_RUN
    if status["state"] == "SPLIT":
        return Exit.SPLIT
    solo = status["state"] == "SOLO"
    obstacle = status.get("obstacle") and not is_first_back(status) and not is_over(status)
    if (solo and obstacle) or any(_misses_others(run, solo) for run in runs):
        return Exit.ALONE
    not_yet = any(run.get("phase") == "restoring" for run in runs)
    return Exit.FAILED_RUN if not_yet or obstacle else Exit.OK


def _misses_others(run: Answer, solo: bool) -> bool:
    """Somebody was or must be in the run, and is not here: it has begun, is not ours, or only they have its state."""
    if run["phase"] in ("finished", "restoring") or run.get("is_resting"):
        return False
    if run["phase"] == "syncing":
        return solo or run["members"] == 1
    return solo and (run["round"] >= run["first_round"] or not run["is_creator"])
