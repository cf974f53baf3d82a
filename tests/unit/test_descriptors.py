"""How many files may be open, and how many of them strangers may not use up."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from shoal.protocol.net.system import descriptors
from shoal.protocol.net.system.descriptors import LEAST, RESERVE, is_reserved, raise_limit, share


@pytest.fixture
def limit() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("limit")
def test_the_soft_limit_goes_up_to_the_hard_one() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (LEAST + 1, hard))
    most = raise_limit()
    assert most == descriptors.limit() == min(hard, descriptors.WANTED)


def test_too_few_files_are_said_in_a_sentence() -> None:
    code = "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (64, 64)); " + (
        "from shoal.protocol.net.system.descriptors import raise_limit; raise_limit()"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "only 64 files and connections open" in found.stderr
    assert "ulimit -n" in found.stderr


@pytest.mark.usefixtures("limit")
def test_the_number_of_a_file_says_when_only_our_own_are_left() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    with ExitStack() as stack:
        strangers = 0
        while not is_reserved((latest := stack.enter_context(socket.socket())).fileno()):
            strangers += 1
        latest.close()
        assert strangers <= 512 - RESERVE
        ours = [os.open(os.devnull, os.O_RDONLY) for _ in range(RESERVE - 1)]
        for each in ours:
            os.close(each)


@pytest.mark.usefixtures("limit")
def test_shares_shrink_with_the_limit_and_leave_the_reserve() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    assert share(0.5, 1024) == 1024
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    assert share(0.5, 1024) == (256 - RESERVE - descriptors.OWN) // 2
    resource.setrlimit(resource.RLIMIT_NOFILE, (LEAST, hard))
    assert share(1 / 16, 64) == 1
