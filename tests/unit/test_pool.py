"""Threads for one purpose: a call that hangs keeps neither the process nor its memory."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import weakref
from functools import partial

import pytest

from shoal.node.base.pools import MAX_OPEN, Pool

HANGING = """
import threading
from shoal.node.base import pools
pools.PARTING = 1.0
for number in range(30):
    pools.Pool(f"pool{number}", 1).begin(threading.Event().wait)
"""


def test_all_pools_are_waited_for_together_at_the_end() -> None:
    subprocess.run([sys.executable, "-c", HANGING], timeout=20, check=True)


def test_what_may_be_left_out_is_while_much_waits(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    pool, go_on, done = Pool("notes", 1), threading.Event(), list[int]()
    pool.begin(lambda: go_on.wait(30.0))
    for number in range(10 * MAX_OPEN):
        pool.offer(lambda number=number: done.append(number))  # type: ignore[misc]
    assert [record.getMessage() for record in caplog.records] == [
        "a disk does not answer: notes are left out until it does"
    ]
    go_on.set()
    assert pool.join(30.0)
    assert done == list(range(MAX_OPEN - 1))
    pool.offer(lambda: done.append(-1))
    assert pool.join(30.0)
    assert done[-1] == -1


class Held:
    """Something large that work is given."""


def test_what_work_held_is_free_when_its_result_is_known() -> None:
    pool, go_on, free = Pool("disk", 1), threading.Event(), list[bool]()
    held = Held()
    gone = weakref.ref(held)

    future = pool.begin(partial(lambda _: go_on.wait(30.0), held))
    future.add_done_callback(lambda _: free.append(gone() is None))
    del held
    go_on.set()
    assert pool.join(30.0)
    assert free == [True]
