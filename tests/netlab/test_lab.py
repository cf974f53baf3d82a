"""A lab leaves nothing behind, however its owner dies; and it can be explored by hand."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.nodes import until
from tests.netlab.lab import Lab, what_is_missing
from tests.netlab.namespaces import PREFIX, inhabitants, remains, sweep
from tests.netlab.places import PLACES

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "tests.netlab"]


@contextmanager
def walk(*argv: str) -> Iterator[subprocess.Popen[str]]:
    """Somebody at a shell in a lab of theirs, with something that runs in the background there."""
    pipe = subprocess.PIPE
    with subprocess.Popen([*COMMAND, "shell", *argv], cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("sleep 1000 >/dev/null 2>&1 &\necho ready\n")
        process.stdin.flush()
        assert "ready\n" in iter(process.stdout.readline, "")
        try:
            yield process
        finally:
            process.kill()


def left_of(pid: int) -> list[str]:
    return remains(f"{PREFIX}-{pid}")


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}/exe").exists() for pid in pids)  # which zombies do not have


@pytest.mark.usefixtures("lab")
def test_a_lab_whose_owner_is_killed_is_gone_at_once() -> None:
    with walk("home-double") as owner:
        assert len(left_of(owner.pid)) == 4
        running = [*inhabitants(left_of(owner.pid)), *children(owner.pid)]
        assert len(running) >= 3  # the shell, what it started, and the switch
        owner.kill()
        owner.wait()
        until(lambda: not left_of(owner.pid) and is_gone(running), "the lab to go", lambda: str(left_of(owner.pid)))


@pytest.mark.usefixtures("lab")
def test_a_lab_whose_switch_is_killed_with_it_goes_with_the_next_lab() -> None:
    with walk("home-symmetric") as owner:
        os.kill(owner.pid, signal.SIGSTOP)
        running = [*inhabitants(left_of(owner.pid)), *children(owner.pid)]
        switch = set(children(owner.pid)) - set(inhabitants(left_of(owner.pid)))
        assert len(switch) == 1
        os.kill(switch.pop(), signal.SIGKILL)
        owner.kill()
        owner.wait()
        assert len(left_of(owner.pid)) == 3
        sweep()
        assert not left_of(owner.pid)
        until(lambda: is_gone(running), "what ran there to end", lambda: str(running))


def test_the_end_of_a_lab_ends_what_runs_in_it(lab: Lab) -> None:
    host = lab.internet.host("host")
    with subprocess.Popen(host.argv("sleep", "1000")) as process:
        until(lambda: process.pid in inhabitants([host.name]), "the process to be there", str)
        lab.close()
        assert process.wait(10) == -signal.SIGKILL
    assert not remains(lab.name)


def test_an_order_that_makes_no_sense_is_an_error_of_the_test_that_gave_it(lab: Lab) -> None:
    with pytest.raises(RuntimeError, match="illegal IP address"):
        lab.internet.cut([lab.machine("nowhere")], [])


@pytest.mark.usefixtures("lab")
def test_somebody_walks_around() -> None:
    words = "hostname -I 2>/dev/null; ip -br address show wan; echo $PS1; exit 3\n"
    argv = [*COMMAND, "shell", "home-symmetric+blocked", "--on", "server", "--delay", "25"]
    done = subprocess.run(argv, cwd=ROOT, input=words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3, done.stderr
    assert "The internet, each line with 25 ms:" in done.stdout
    assert "198.51.100.1     router (symmetric, drops), inside 192.168.1.0/24:\n    192.168.1.2" in done.stdout
    assert "203.0.113.1      b (blocked)" in done.stdout
    assert "192.0.2.1/32" in done.stdout.partition("This one is on server")[2]


@pytest.mark.parametrize(
    "argv", [["nowhere"], ["public", "--on", "z"], ["public", "--loss", "101"], ["public", "--rate", "0"]]
)
@pytest.mark.usefixtures("lab")
def test_what_cannot_be_is_one_sentence(argv: list[str]) -> None:
    done = subprocess.run([*COMMAND, "shell", *argv], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_all_places_are_listed() -> None:
    done = subprocess.run([*COMMAND, "list"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert all(f"  {place} " in done.stdout for place in PLACES)


def test_without_nftables_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "nft" else f"/sbin/{tool}")
    assert what_is_missing.__wrapped__() == "there is no `nft` (nftables)"
