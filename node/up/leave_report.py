"""The report of a play, made by `shoal report` in a process of its own, so that this one needs no plotting library."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

from shoal.node.up.processes import Children

POLL = 0.1
WITHIN = 120.0  # seconds; the first time on a machine, the plotting library looks at all its fonts


async def leave_report(out: Path, children: Children, say: Callable[[str], None]) -> None:
    """Make the report, and say where it is; the play's verdict does not depend on it."""
    log = out / "logs" / "report.log"
    child = children.start([sys.executable, "-P", "-m", "shoal.node", "report", str(out)], log)
    try:
        async with asyncio.timeout(WITHIN):
            while child.code() is None:
                await asyncio.sleep(POLL)
    except TimeoutError:
        child.kill()
    if child.code() == 0:
        say(f"The report: {out / 'report.html'}")
    else:
        say(f"No report could be made; {log} says why.")
    say(f"Logs, metrics and states: {out}")
