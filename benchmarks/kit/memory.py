"""The memory of a process, as Linux counts it: now, by sorts, and the highest that it has been (see proc(5))."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

EVERY = 0.05  # seconds between two looks
FORGET_PEAK = "5"  # what clear_refs takes for it


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that are resident, and of those its own, of files (programs), and shared; and the most there were."""

    resident: int
    own: int
    files: int
    shared: int
    peak: int


def look(pid: int) -> Memory:
    """How things are now."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = {name: int(words.split()[0]) for name, _, words in (line.partition(":") for line in lines) if " kB" in words}
    fields = ("VmRSS", "RssAnon", "RssFile", "RssShmem", "VmHWM")
    return Memory(*(kib[name] << 10 for name in fields))


def forget_peak(pid: int) -> None:
    """From now on, `peak` is the most since now."""
    Path(f"/proc/{pid}/clear_refs").write_text(FORGET_PEAK)


class Watch:
    """Looks at processes all the time, until the end of the `with` block: what each was at its fullest, by sorts."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.fullest: dict[int, Memory] = {}

    def __enter__(self) -> Watch:
        for pid in self._pids:
            forget_peak(pid)
            self.fullest[pid] = look(pid)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(EVERY):
            for pid in self._pids:
                now = look(pid)
                if now.resident > self.fullest[pid].resident:
                    self.fullest[pid] = now
