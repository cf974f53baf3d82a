"""A script that leaves a run and enters it again in the same process, as notebooks and long scripts do."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from shoal.node.client.script.api import Run, create, join
from shoal.node.client.up.processes import Children
from shoal.protocol.base.errors import LocalError
from tests.integration.nodes import RealNode, until

ALONE = {"min_members": 1, "start_members": 1, "pace": "steps"}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealNode]:
    with Children(grace=0.0) as children:
        started = RealNode(tmp_path / "node").start(children)
        monkeypatch.setenv("SHOAL_HOME", str(started.home.root))
        EARLIER.update(threading.enumerate())
        yield started


class Bench:
    """A small module and its optimizer."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(3, 4)).square().sum().backward()
        self.optimizer.step()

    def rounds(self, run: Run, count: int) -> None:
        """Train for so many rounds more."""
        last = run.progress.round + count
        while run.progress.round < last and not run.is_over:
            self.step()


def founded(bench: Bench, **rounds: int) -> Run:
    run = create("again", method={"inner_steps": 2, "batch": 1}, rounds={**ALONE, **rounds})
    run.wrap(bench.optimizer, bench.model)
    return run


def shared() -> int:
    """How many shared vectors this process has mapped or open."""
    gc.collect()
    mapped = Path("/proc/self/maps").read_text().count("memfd:shoal")
    fds = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return mapped + sum("memfd:shoal" in each for each in fds)


EARLIER = set(threading.enumerate())


def threads() -> list[threading.Thread]:
    """The threads that read a run's socket, without those that other tests have left."""
    return [each for each in threading.enumerate() if each.name == "shoal" and each not in EARLIER]


@pytest.mark.slow
def test_a_run_that_was_closed_is_joined_again_at_once(node: RealNode) -> None:
    bench, held = Bench(), shared()
    run = founded(bench)
    for number in range(6):
        bench.rounds(run, 1)
        begin = time.monotonic()
        run.close()
        run.close()
        assert time.monotonic() - begin < 2, "closing is at once"
        assert threads() == []
        assert run.progress.round == number + 2, "how far it was is still known"
        if number % 2:
            run.wrap(bench.optimizer, bench.model)
        else:
            run = join(run.id)
            run.wrap(bench.optimizer, bench.model)
    run.close()
    if Path("/proc/self/maps").exists():
        assert shared() <= held
    before = bench.model.weight.clone()
    bench.step()  # of an ordinary optimizer
    assert not torch.equal(before, bench.model.weight)


@pytest.mark.slow
def test_with_statements_and_cells_that_are_run_twice(node: RealNode) -> None:
    first = Bench()
    run = founded(first)
    with pytest.raises(ZeroDivisionError), run:
        raise ZeroDivisionError
    assert threads() == []
    with run:  # once more
        run.wrap(first.optimizer, first.model)
        first.rounds(run, 1)

    benches, runs = [], []
    for _ in range(3):  # a cell that makes all anew, and closes nothing
        benches.append(Bench())
        runs.append(join("again"))
        runs[-1].wrap(benches[-1].optimizer, benches[-1].model)
        benches[-1].rounds(runs[-1], 1)
    assert len(threads()) == 1
    with pytest.raises(LocalError, match="has taken the place of this optimizer"):
        benches[0].step()
    runs[-1].wrap(benches[0].optimizer, benches[0].model)  # it may come back
    benches[0].rounds(runs[-1], 1)
    other = nn.Linear(4, 3)
    with pytest.raises(LocalError, match="this module is not the run's"):
        runs[-1].wrap(torch.optim.SGD(other.parameters()), other)
    benches[0].rounds(runs[-1], 1)  # who was refused has taken nobody's place
    runs[-1].close()


@pytest.mark.slow
def test_a_part_that_its_function_has_forgotten_is_not_in_the_way(node: RealNode) -> None:
    run = founded(Bench())
    run.close()
    for is_collected in (True, False, True):

        def train() -> None:
            bench, again = Bench(), join(run.id)
            again.wrap(bench.optimizer, bench.model)
            bench.rounds(again, 1)

        train()
        if is_collected:
            gc.collect()
    until(lambda: "has gone" in str(node.row()["waiting_for"]), "the node to notice", node.words)
    assert threads() == []


@pytest.mark.slow
def test_a_forked_process_neither_keeps_nor_ends_the_part_of_its_parent(node: RealNode) -> None:
    bench = Bench()
    run = founded(bench)
    child = os.fork()
    if not child:  # as a DataLoader's worker, which may live on
        try:
            run.close()
            signal.pause()
        finally:
            os._exit(0)
    try:
        bench.rounds(run, 1)
        run.close()
        run.wrap(bench.optimizer, bench.model)
        bench.rounds(run, 1)
        run.close()
        until(lambda: "has gone" in str(node.row()["waiting_for"]), "the node to notice", node.words)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.slow
def test_a_run_that_is_over_is_joined_again_and_changes_nothing(node: RealNode) -> None:
    bench = Bench()
    run = founded(bench, last=2)
    bench.rounds(run, 5)
    result = bench.model.weight.detach().clone()
    run.close()
    assert run.is_over
    other = Bench()
    run.wrap(other.optimizer, other.model)
    other.step()
    assert run.is_over
    assert torch.equal(other.model.weight, result)
    run.close()
