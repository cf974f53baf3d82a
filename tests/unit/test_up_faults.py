"""The fault trigger fires once, in its round and role, when some but not all chunks are sent."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from shoal.node.base.fault_injection import FAULT_VARIABLE, MARK, Fault, FaultTrigger, armed_trigger
from shoal.protocol.base.errors import LocalError


def test_the_text_of_a_fault_reads_back() -> None:
    fault = Fault.parse("kill round=4 share=0.5 role=any when=gather")
    assert fault == Fault("kill", 4, 0.5, "any", "gather")
    assert Fault.parse(str(fault)) == fault
    assert Fault.parse("stop round=2") == Fault("stop", 2, 0.5, "any", "scatter")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "kill",
        "pause round=4",
        "kill round=0",
        "kill round=four",
        "kill round=4 share=1",
        "kill round=4 share=0",
        "kill round=4 share=nan",
        "kill round=4 role=king",
        "kill round=4 when=now",
        "kill 4",
    ],
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(LocalError, match=FAULT_VARIABLE):
        Fault.parse(text)


def fired(fault: str, round: int, total: int, role: str = "owner") -> list[str]:
    """The output of a trigger while `total` chunks are written."""
    said: list[str] = []
    trigger = FaultTrigger(Fault.parse(fault), said.append)
    for sent in range(1, total + 1):
        trigger.moved(round, sent, total, role)
    return said


def test_it_fires_once_when_the_share_is_reached() -> None:
    assert fired("kill round=4 share=0.5", 4, 12) == ["6 of 12 chunks sent in round 4"]
    assert fired("kill round=4 share=0.3", 4, 10) == ["3 of 10 chunks sent in round 4"]


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
@pytest.mark.parametrize("total", [2, 3, 50])
def test_some_but_not_all_chunks_are_sent(share: float, total: int) -> None:
    (said,) = fired(f"kill round=4 share={share}", 4, total)
    assert 1 <= int(said.split()[0]) < total


def test_it_is_silent_elsewhere() -> None:
    assert fired("kill round=4", 3, 12) == []
    assert fired("kill round=4", 4, 1) == []  # one chunk cannot be sent in part
    assert fired("kill round=4 role=proposer", 4, 12, "contributor") == []
    assert len(fired("kill round=4 role=proposer", 4, 12, "proposer")) == 1


def test_it_waits_for_its_stage() -> None:
    said: list[str] = []
    trigger = FaultTrigger(Fault.parse("kill round=4 when=decision"), said.append)
    trigger.moved(4, 1, 2, "owner", "scatter")
    trigger.moved(4, 1, 2, "owner", "gather")
    trigger.decides(3, "owner")
    assert said == []
    for _ in range(2):
        trigger.decides(4, "owner")
    assert said == ["in the decision of round 4"]


def test_no_variable_arms_nothing() -> None:
    assert armed_trigger({}) is None


def test_the_signal_is_real() -> None:
    program = (
        "import os; from shoal.node.base.fault_injection import armed_trigger\n"
        "trigger = armed_trigger(os.environ)\n"
        "for sent in range(1, 9): print(sent, flush=True); trigger.moved(4, sent, 8, 'owner')\n"
    )
    died = subprocess.run(
        [sys.executable, "-c", program],
        env={FAULT_VARIABLE: "kill round=4 share=0.5"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert died.returncode == -signal.SIGKILL
    assert died.stdout.split() == ["1", "2", "3", "4"]
    assert died.stderr == f"{MARK} 4 of 8 chunks sent in round 4\n"
