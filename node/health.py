"""Whether a node is healthy, from its `status`: the exit code of `shoal status --exit-code`, for health checks.

Worst first; what is not listed is healthy, so also a bootstrap node that is in no run:

    FAILED_RUN  a run has ended on this node, or it is not in one that it should be in, though others are there
    SPLIT       too few of a run's members are reachable
    ALONE       a run that this node should be in has others, and none of them answers

The creator of a run whose first round has not begun is waiting, not alone.
"""

from __future__ import annotations

from typing import Any

from shoal.node.exits import Exit

Answer = dict[str, Any]


def verdict(status: Answer) -> Exit:
    """The exit code that stands for an answer to `status`."""
    runs = status["runs"]
    if any(run.get("failure") for run in runs):
        return Exit.FAILED_RUN
    if status["state"] == "SPLIT":
        return Exit.SPLIT
    if status["state"] == "SOLO" and (status.get("obstacle") or any(map(_has_others, runs))):
        return Exit.ALONE
    return Exit.FAILED_RUN if status.get("obstacle") else Exit.OK


def _has_others(run: Answer) -> bool:
    """Somebody else was or must be in the run: it has begun, or it is not ours."""
    return run.get("phase") != "finished" and (run["round"] > 0 or not run.get("is_creator"))
