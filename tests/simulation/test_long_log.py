"""A long run of `ddp`, in which each step is a decision, grows neither on the disk nor in memory; docs/log.md has the
figures."""

from __future__ import annotations

import gc
import os
import sys
import time
from pathlib import Path

import pytest

from shoal.node.run.log_store import JOURNAL, LONGEST
from tests.simulation.long_log import CHECKPOINT, WRITING, LongLog, memory, opened

MOST_RECORDS = (WRITING + CHECKPOINT) << 10  # bytes of the records until a checkpoint is begun and written
WARM = 0.2  # share of the steps after which memory is as large as it gets
LEAST_STEPS = 6_000  # in which a journal is made shorter once, at least


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
@pytest.mark.parametrize("steps", [LEAST_STEPS, 100_000])
def test_disk_and_memory_of_a_long_log_are_bounded(
    steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "fdatasync", lambda _: None)
    log, began, warm, most = LongLog(tmp_path), time.process_time(), 0, 0
    for step in range(1, steps + 1):
        log.step()
        if step % 1000 == 0:
            gc.collect()
            most = max(most, memory())
            warm = most if step <= WARM * steps else warm
    assert log.steps == steps
    took = time.process_time() - began
    longest = max(voter.longest for voter in log.voters.values())
    on_disk = {peer: sum(file.stat().st_size for file in (tmp_path / peer).rglob("*")) for peer in log.voters}
    began = time.process_time()
    peer = next(iter(log.voters))
    again, kept = opened(peer, tmp_path / peer)
    reading = time.process_time() - began
    with capsys.disabled():
        print(f"\n{steps} steps of three voters: journal {longest / 2**20:.2f} MiB at most, shortened", end=" ")
        print(
            f"{log.voters[peer].compactions} times; {most / 2**20:.0f} MiB of memory, {warm / 2**20:.0f} after a fifth"
        )
        print(f"of the steps; {1e3 * took / steps:.2f} ms of processor time a step for all three; a restart reads the")
        print(f"journal in {reading:.2f} s ({len(kept.entries)} entries, {len(kept.way.headers)} headers)")
    assert longest <= LONGEST + MOST_RECORDS
    assert log.voters[peer].compactions >= 1
    assert all(size <= LONGEST + MOST_RECORDS for size in on_disk.values()), on_disk
    assert most - warm <= 16 << 20, "memory still grows"
    assert again.keeper.register == log.voters[peer].keeper.register
    assert (tmp_path / peer / "log" / JOURNAL).stat().st_size == again.store.size
