"""Two members, each with a script: one of them is killed, or held still, and the other trains on; then it is back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.nodes import RealNode, until
from tests.integration.scripts import Script, all_ended, two_nodes

SCRIPT = """
import sys, time
import torch
from shoal.node import create, join

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
method = {"inner_steps": 4, "outer_lr": 1.0, "outer_momentum": 0.0}
rounds = {"min_members": 1, "start_members": 2, "pace": sys.argv[2]}
run = create("lines", method=method, rounds=rounds) if sys.argv[1] == "found" else join(sys.argv[1])
optimizer = run.wrap(optimizer, model)
print(run.link, flush=True)
while not run.is_over:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
"""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[RealNode, RealNode]]:
    with two_nodes(tmp_path) as both:
        yield both


@pytest.fixture
def scripts() -> Iterator[list[Script]]:
    with all_ended() as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("pace", ["deadline", "steps"])
@pytest.mark.parametrize("who", [0, 1])
def test_the_other_trains_on(
    nodes: tuple[RealNode, RealNode], scripts: list[Script], tmp_path: Path, pace: str, who: int
) -> None:
    program = tmp_path / "script.py"
    program.write_text(SCRIPT)
    scripts.append(Script(nodes[0], str(program), "found", pace))
    link = scripts[0].link()
    scripts.append(Script(nodes[1], str(program), link, pace))
    gone, here = nodes[who], nodes[1 - who]

    def words() -> str:
        return "\n".join(f"{node.row()} {node.words()}" for node in nodes)

    def counted(least: int) -> bool:
        """Whether the last round had so many contributions."""
        rounds = here.client.rounds(here.row()["run"], 1)
        return bool(rounds) and int(rounds[-1]["contributors"]) >= least

    until(lambda: here.round() >= 3 and counted(2), "rounds of both", words)
    scripts[who].process.kill()
    scripts[who].process.wait()
    until(lambda: "the script" in str(gone.row()["waiting_for"]), "the word on it", words)
    before, begin = here.round(), time.monotonic()
    until(lambda: here.round() >= before + 10, "rounds of the other", words)
    assert time.monotonic() - begin < 20.0
    assert gone.round() >= before + 9, "its node keeps the state"
    scripts.append(Script(gone, str(program), link, pace))  # run again
    until(lambda: counted(2), "rounds of both again", words)
    assert gone.row()["waiting_for"] is None or "script" not in gone.row()["waiting_for"]
    if pace == "deadline":
        os.kill(scripts[-1].process.pid, signal.SIGSTOP)
        before = here.round()
        until(lambda: here.round() >= before + 10, "rounds without the one that is held", words)
        os.kill(scripts[-1].process.pid, signal.SIGCONT)
        until(lambda: counted(2), "rounds of both at the end", words)
