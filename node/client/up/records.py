"""metrics.jsonl, as it is written while things happen. The package shoal.node.client.report reads it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from shoal.node.base.lines import LineWriter
from shoal.node.base.pools import NOTES
from shoal.protocol.base.shortages import in_words

SETTLED = 30.0  # seconds for a disk to take the end of metrics.jsonl


class Metrics:
    """metrics.jsonl: one JSON object per line, each with `time` (seconds of the clock) and `kind`.

    A thread writes them, so that no disk holds up the play. What it could not write is counted in a line: `lost`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._writer = LineWriter(self._file.fileno(), lambda count, reason: _line("lost", count=count, reason=reason))

    def write(self, kind: str, **fields: Any) -> None:
        """Append one line."""
        self._writer.write(_line(kind, **fields))

    async def settle(self) -> str:
        """Wait until what was written can be read, for a while at most; why it cannot, empty if it can."""
        await NOTES.run(self._writer.flush, SETTLED)
        if self._writer.failure is not None:
            return f"{self._path} lacks its end: {in_words(self._writer.failure)}"
        return f"{self._path} lacks its end, which the disk has not taken in {SETTLED:.0f} s" * self._writer.is_behind

    def __enter__(self) -> Metrics:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.flush()
        if not self._writer.is_behind:  # else the thread writes there until the process ends
            self._file.close()


def _line(kind: str, **fields: Any) -> str:
    return json.dumps({"time": round(time.time(), 3), "kind": kind, **fields})
