"""Settings of every test: a home of its own, few threads, and random cases that repeat."""

from __future__ import annotations

import gc
import itertools
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from shoal.node.extensions import register_extensions

# A shell ignores SIGINT in what it starts in the background, and so would all programs that are started from here.
signal.signal(signal.SIGINT, signal.default_int_handler)

if (os.cpu_count() or 1) <= 4 or "PYTEST_XDIST_WORKER" in os.environ:
    # Before torch is imported: two processes with two threads each on two cores are far slower than one.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same cases in every run, so that a failure is never a matter of luck: a few with `make test`, more with
# `make test-all`. `--hypothesis-profile=explore` draws new ones and prints how to repeat a failing one. No deadline:
# a busy machine is not a bug.
hypothesis.settings.register_profile("repeatable", max_examples=25, derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("thorough", max_examples=100, derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("explore", max_examples=2_000, deadline=None, print_blob=True)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Names of folders that are not there yet: most tests need no home, and making a folder for each takes longer."""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in itertools.count())


register_extensions()  # as every process of Shoal's does


@pytest.fixture(autouse=True)
def _own_home(_homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's own node, and no node of a test is seen on the machine's network."""
    monkeypatch.setenv("SHOAL_HOME", str(next(_homes)))
    monkeypatch.setenv("SHOAL_NO_MDNS", "1")
    monkeypatch.setenv("SHOAL_NO_PORT_MAPPING", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without the garbage collector, which would take a sixth of the time and find nothing."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # modules stay: looking through all of them again and again takes a sixth of the time
