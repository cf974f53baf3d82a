"""What holds for every test: one home of its own, few threads, and random cases that repeat."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import hypothesis
import pytest

if (os.cpu_count() or 1) <= 4 or "PYTEST_XDIST_WORKER" in os.environ:
    # Before torch is imported: two processes with two threads each on two cores are far slower than one.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same cases in every run, so that a failure is never a matter of luck. `--hypothesis-profile=explore`
# draws new ones and prints how to repeat a failing one. No deadline: a busy machine is not a bug.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("explore", max_examples=2_000, deadline=None, print_blob=True)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's own node, and no node of a test is seen on the machine's network."""
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "shoal-home"))
    monkeypatch.setenv("SHOAL_NO_MDNS", "1")
    monkeypatch.setenv("SHOAL_NO_PORT_MAPPING", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # what is imported by now stays: looking through all of it again and again takes a sixth of the time
