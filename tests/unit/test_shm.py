"""Shared vectors: both sides see the same numbers, sizes are checked, nothing stays behind."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from shoal.node.ipc import shm
from shoal.node.ipc.shm import SharedVector
from shoal.protocol.base.errors import LocalError


def open_descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def shared_pages() -> int:
    """Resident shared pages of this process."""
    [line] = [each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("RssShmem")]
    return int(line.split()[1]) * 1024 // 4096


def test_two_mappings_of_one_vector_see_each_other() -> None:
    with SharedVector.create(5) as ours, SharedVector(os.dup(ours.fd), 5) as theirs:
        ours.array[:] = np.arange(5)
        theirs.array[0] = 7
        assert ours.array.tolist() == theirs.array.tolist() == [7, 1, 2, 3, 4]


def test_a_new_vector_is_zero() -> None:
    with SharedVector.create(1000) as vector:
        assert not vector.array.any()


def test_a_reader_cannot_write() -> None:
    with SharedVector.create(3) as ours, SharedVector(os.dup(ours.fd), 3, writable=False) as theirs:
        with pytest.raises(ValueError, match="read-only"):
            theirs.array[0] = 1
        ours.array[0] = 2
        assert theirs.array[0] == 2


@pytest.mark.parametrize("elements", [4, 6, 0])
def test_another_size_is_refused_and_the_descriptor_stays_ours(elements: int) -> None:
    with SharedVector.create(5) as vector:
        fd = os.dup(vector.fd)
        with pytest.raises(LocalError, match="cannot have 20 bytes"):
            SharedVector(fd, elements)
        os.close(fd)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can")
def test_memory_that_is_given_back_is_gone_for_both_sides_and_comes_back_with_the_next_write() -> None:
    pages = 1000
    with SharedVector.create(pages * 1024) as ours, SharedVector(os.dup(ours.fd), pages * 1024) as theirs:
        ours.array[:] = 1
        assert theirs.array.all()
        held = os.fstat(ours.fd).st_blocks
        ours.clear()
        assert (held, os.fstat(ours.fd).st_blocks) == (8 * pages, 0)
        assert not theirs.array.any()
        ours.array[5] = 2
        assert theirs.array[5] == 2
    ours.clear()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_copy_maps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm, "MOST_READ", 1_000_000)
    with SharedVector.create(1 << 20) as ours, SharedVector(os.dup(ours.fd), 1 << 20) as theirs:
        ours.array[:] = np.arange(1 << 20)
        mapped = shared_pages()
        copied = theirs.copied()
        assert shared_pages() == mapped
        assert (copied == ours.array).all()


@pytest.mark.skipif(sys.platform != "linux", reason="only memfds can be sealed")
def test_nobody_can_shrink_a_vector_under_its_readers() -> None:
    with SharedVector.create(5) as vector, pytest.raises(PermissionError):
        os.ftruncate(vector.fd, 4)


def test_a_closed_vector_is_refused_but_its_arrays_stay_valid() -> None:
    vector = SharedVector.create(3)
    array = vector.array
    vector.close()
    vector.close()
    array[:] = 1
    assert array.sum() == 3
    with pytest.raises(LocalError, match="closed"):
        _ = vector.array
    with pytest.raises(LocalError, match="closed"):
        _ = vector.fd


def test_no_descriptor_stays_open() -> None:
    gc.collect()
    before = open_descriptors()
    for _ in range(50):
        SharedVector.create(1000).close()
    gc.collect()
    assert open_descriptors() == before
