"""Output that nobody reads blocks nothing, is bounded, and is reported as lost."""

from __future__ import annotations

import errno
import io
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.node.base.lines import FULL, LineWriter, has_room, say
from tests.unread import full, read_until

PATIENCE = 30.0  # seconds


def lost(count: int, reason: str) -> str:
    return f"lost {count}: {reason}"


def _lost_by(said: str) -> int:
    return sum(int(line.split()[1].rstrip(":")) for line in said.splitlines() if line.startswith("lost"))


@pytest.fixture(params=["a pipe", "a terminal"])
def stuck(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    with full(request.param) as ends:
        yield ends


def test_who_writes_where_nobody_reads_does_not_wait_and_hears_what_was_lost(stuck: tuple[int, int]) -> None:
    ours, theirs = stuck
    writer = LineWriter(theirs, lost, most=1000)
    began = time.monotonic()
    for number in range(10_000):
        writer.write(f"line {number:04}")
    assert time.monotonic() - began < PATIENCE / 10
    with os.fdopen(os.dup(theirs), "w") as stream:
        assert not has_room(stream, 0.01)
    writer.flush(0.01)
    said = read_until(ours, FULL.encode()).split(b"x")[-1].decode()
    assert "line 0000" in said
    while (told := _lost_by(said)) < 10_000 - said.count("line"):
        said += read_until(ours, FULL.encode()).decode()
    assert told == 10_000 - said.count("line")
    writer.write("after")
    assert b"after" in read_until(ours, b"after")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="DOES NOT RUN: only Linux has a disk that is always full")
def test_what_a_full_disk_does_not_take_is_counted_and_said_when_there_is_room(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full, (tmp_path / "log").open("wb") as empty:
        descriptor = os.dup(full.fileno())
        writer = LineWriter(descriptor, lost)
        for number in range(3):
            writer.write(f"line {number}")
        writer.flush(PATIENCE)
        os.dup2(empty.fileno(), descriptor)
        writer.write("after")
        writer.flush(PATIENCE)
        os.close(descriptor)
    assert (tmp_path / "log").read_text() == f"after\nlost 3: {os.strerror(errno.ENOSPC)}\n"


def test_what_is_written_comes_in_its_order(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        writer = LineWriter(file.fileno(), lost)
        for number in range(1000):
            writer.write(str(number))
        writer.flush(PATIENCE)
    assert (tmp_path / "log").read_text().split() == [str(number) for number in range(1000)]


def test_a_stream_in_memory_is_written_at_once() -> None:
    stream = io.StringIO()
    say("a line", stream)
    assert stream.getvalue() == "a line\n"
    assert has_room(stream)
