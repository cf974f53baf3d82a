"""How much memory is available, by the kernel and under real limits; and how a shortage differs from a bug."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.node.base.room import (
    VERSION_2,
    NoRoom,
    _control_group,
    available_memory,
    check_disk,
    check_memory,
    no_room,
    or_no_room,
)
from shoal.protocol.base.errors import LocalError
from tests.limits import MIB, in_control_group

ASK = (
    "from shoal.node.base.room import available_memory; room = available_memory(); "
    "print(room.together.total, room.together.free, room)"
)


def test_the_machine_has_what_the_kernel_says() -> None:
    room = available_memory().together
    assert 0 < room.free <= room.total
    assert "free now" in str(room)


def asked(before: str = "", prefix: tuple[str, ...] = ()) -> tuple[int, int, str]:
    """Total, free and words, as another process sees them that has done `before`."""
    argv = [*prefix, sys.executable, "-c", f"{before}\n{ASK}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    total, free, words = done.stdout.split(" ", 2)
    return int(total), int(free), words


def test_a_limit_of_address_space_is_one_of_the_process() -> None:
    words = asked(f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({4096 * MIB}, {4096 * MIB}))")[2]
    assert "a process here (ulimit -v) has 4.0 GiB of memory" in words
    assert available_memory().process is None or "ulimit" in str(available_memory())


@pytest.fixture
def control_group() -> Iterator[tuple[str, ...]]:
    with in_control_group(700 * MIB) as prefix:
        yield prefix


def test_a_control_group_bounds_all_that_is_in_it(control_group: tuple[str, ...]) -> None:
    total, free, words = asked(prefix=control_group)
    assert total == 700 * MIB
    assert 500 * MIB < free < total
    assert "the control group (container or service) of this process has 700.0 MiB" in words
    used = asked("held = b'x' * (200 << 20)", control_group)[1]
    assert free - used > 150 * MIB


def test_what_the_system_keeps_of_files_is_free(control_group: tuple[str, ...], tmp_path: Path) -> None:
    """It could be given back at once, and is counted as used by the kernel."""
    big = tmp_path / "big"
    big.write_bytes(os.urandom(MIB) * 200)
    os.sync()
    os.posix_fadvise(fd := os.open(big, os.O_RDONLY), 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    before = f"open({str(big)!r}, 'rb').read(); import gc; gc.collect()"
    assert asked(before, control_group)[1] > 450 * MIB


def test_what_the_system_keeps_of_names_is_free_too(tmp_path: Path) -> None:
    """Of a group of version 2, whose use counts it: after many files were looked at it is most of all."""
    (tmp_path / "memory.max").write_text(f"{700 * MIB}\n")
    (tmp_path / "memory.current").write_text(f"{600 * MIB}\n")
    facts = {"anon": 100 * MIB, "inactive_file": 50 * MIB, "active_file": 50 * MIB, "slab_reclaimable": 400 * MIB}
    (tmp_path / "memory.stat").write_text("".join(f"{name} {value}\n" for name, value in facts.items()))
    (group,) = _control_group(tmp_path, VERSION_2)
    assert (group.total, group.free) == (700 * MIB, 600 * MIB)


def test_too_much_is_refused_in_a_sentence(tmp_path: Path) -> None:
    check_memory(MIB, "a little")
    with pytest.raises(NoRoom, match=r"all of it takes 1024\.0 TiB of memory, and this machine|control group"):
        check_memory(1 << 50, "all of it")
    check_disk(tmp_path / "to be" / "made", 1, "a little")
    with pytest.raises(NoRoom, match=r"all of it takes 1024\.0 TiB on the disk of .*, which has .* free"):
        check_disk(tmp_path / "to be" / "made", 1 << 50, "all of it")


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "memory has run out: .* of memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory has run out"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "memory has run out"),
        (RuntimeError("can't start new thread"), "memory has run out"),
        (RuntimeError("std::bad_alloc"), "memory has run out"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't allocate memory"), "memory"),
        (OSError(errno.ENOSPC, "No space left on device", "/x/y"), "the disk of /x/y is full: free some"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "the disk is full"),
        (Exception("Error while serializing: I/O error: No space left on device (os error 28)"), "the disk is full"),
        (caused(ValueError("a library's own words"), MemoryError()), "memory has run out"),
        (NoRoom("in words already"), "in words already"),
    ],
)
def test_a_want_of_room_is_told_from_a_mistake(error: Exception, said: str) -> None:
    with pytest.raises(NoRoom, match=f"a thing is done: {said}" if not isinstance(error, NoRoom) else said):  # noqa: SIM117
        with or_no_room("a thing is done"):
            raise error


@pytest.mark.parametrize("error", [KeyError("memory"), OSError(errno.EACCES, "Permission denied"), LocalError("full")])
def test_nothing_else_is_one(error: Exception) -> None:
    assert no_room(error) is None
    with pytest.raises(type(error)) as raised, or_no_room("a thing is done"):
        raise error
    assert raised.value is error
