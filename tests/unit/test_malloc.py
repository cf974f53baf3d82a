"""Settings of the C library's allocator, each in a process of its own, as they hold for a whole process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HAS_GLIBC = "CS_GNU_LIBC_VERSION" in getattr(os, "confstr_names", {}) and bool(os.confstr("CS_GNU_LIBC_VERSION"))
needs_glibc = pytest.mark.skipif(not HAS_GLIBC, reason="it is glibc that has arenas")

COUNT = """
import ctypes, pathlib, sys, tempfile, threading
from shoal.node.base import malloc

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.fopen.restype = ctypes.c_void_p
libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
libc.fclose.argtypes = [ctypes.c_void_p]

def allocate():
    all_here.wait()
    libc.free(libc.malloc(50_000))

malloc.share_arenas()
all_here = threading.Barrier(8)
threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
with tempfile.NamedTemporaryFile() as file:
    stream = libc.fopen(file.name.encode(), b"w")
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    print(pathlib.Path(file.name).read_text().count("<heap "))
"""
FREE = """
import ctypes
from shoal.node.base import malloc
from shoal.node.base.malloc import resident_bytes

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = libc.free.argtypes = [ctypes.c_void_p]
pieces = [libc.malloc(50_000) for _ in range(1000)]
for piece in pieces: ctypes.memset(ctypes.c_void_p(piece), 1, 50_000)
for piece in pieces[:-1]: libc.free(piece)  # the last one keeps all that is below it
before = resident_bytes()
malloc.sweep()
print(before - resident_bytes())
"""


def said_by(program: str, **more: str) -> int:
    """The number that a process prints."""
    plain = {name: value for name, value in os.environ.items() if name not in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")}
    command = [sys.executable, "-P", "-c", program]
    return int(subprocess.run(command, env=plain | more, capture_output=True, check=True, timeout=60).stdout)


@needs_glibc
def test_eight_threads_share_two_arenas() -> None:
    assert said_by(COUNT) == 2


@needs_glibc
def test_who_starts_us_may_choose_another_number() -> None:
    assert said_by(COUNT, MALLOC_ARENA_MAX="5") == 5
    assert said_by(COUNT, GLIBC_TUNABLES="glibc.malloc.arena_max=4") == 4
    assert said_by(COUNT, GLIBC_TUNABLES="glibc.malloc.perturb=0") == 2


@needs_glibc
def test_a_sweep_gives_back_what_was_freed_below_something_that_is_held() -> None:
    assert said_by(FREE) > 40e6
