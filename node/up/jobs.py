"""One-thread processes that compute something, beside each other, and their answers."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from shoal.node.client import Answer
from shoal.node.up.processes import Children
from shoal.protocol.errors import LocalError

POLL = 0.1
WEIGHTS = "--weights="
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Jobs:
    """Starts the tasks of `job.py`; what they say lies in `logs`, their answers in `jobs` of the output folder."""

    def __init__(self, children: Children, out: Path, weights: Sequence[Path] = ()) -> None:
        """`weights` are folders with frozen weights, for those that build a model of adapters."""
        self._children = children
        self._out = out
        self._weights = [f"{WEIGHTS}{folder.absolute()}" for folder in weights]

    async def run(self, name: str, task: str, *arguments: object) -> Answer:
        """The answer to one task; LocalError with its last words if it has none."""
        result = self._out / "jobs" / f"{name}.json"
        log = self._out / "logs" / f"{name}.log"
        result.parent.mkdir(exist_ok=True)
        argv = [sys.executable, "-P", "-m", "shoal.node.up.job", *self._weights, str(result), task]
        argv += map(str, arguments)
        child = self._children.start(argv, log, ONE_THREAD)
        while child.code() is None:
            await asyncio.sleep(POLL)
        if child.code() != 0:
            words = log.read_text(errors="replace").splitlines()[-1:] or [f"exit status {child.code()}"]
            raise LocalError(f"{name} failed: {words[0]} (its log is {log})")
        answer: Answer = json.loads(result.read_text())
        return answer
