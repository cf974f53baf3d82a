"""The shipped Compose file on a real engine: a swarm trains, loses a trainer, stops, goes on, leaves nothing.

Then the README's start with Compose, word for word; and its way from an empty container to a round of another's run.
"""

from __future__ import annotations

import faulthandler
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose.empty import EmptyContainers
from tests.compose.stack import ROOT, Stack, compose_commands, engine
from tests.starts import COMPOSE, INSTALL, TWO, blocks, link_in

pytestmark = [pytest.mark.slow, pytest.mark.compose]


@pytest.fixture(scope="module")
def environ() -> Iterator[dict[str, str]]:
    with engine() as found:
        yield found


@pytest.fixture
def stack(environ: dict[str, str]) -> Iterator[Stack]:
    stack = Stack(environ)
    try:
        yield stack
    finally:
        stack.compose("down", "--volumes", "--timeout", "20")


def test_a_swarm_in_containers(stack: Stack) -> None:
    faulthandler.cancel_dump_traceback_later()  # building the image takes minutes; `until` has deadlines of its own
    stack.compose("up", "--detach", "--build")
    (bootstrap,), trainers = stack.containers("bootstrap"), stack.containers("trainer")
    assert len(trainers) == 3
    stack.until(lambda: all(rounds(stack, each) >= 1 for each in trainers), "a round in each trainer")
    names = [stack.status(each)["peer"] for each in [bootstrap, *trainers]]
    assert len(set(names)) == 4
    assert [stack.status(each)["trains"] for each in [bootstrap, *trainers]] == [False, True, True, True]
    assert_confined(stack, bootstrap, trainers)

    victim, name = trainers[1], names[2]
    stack.docker("kill", victim)
    before = rounds(stack, trainers[0])
    stack.until(lambda: rounds(stack, trainers[0]) > before, "a round without the one that was killed")
    stack.docker("start", victim)
    before = rounds(stack, trainers[0])
    stack.until(lambda: rounds(stack, victim) > before, "a round with the one that came back")
    assert stack.status(victim)["peer"] == name

    # All of them stop, and are started at once: nobody waits for the health of a node that waits for it.
    stack.compose("stop")
    stack.compose("start")
    again = [bootstrap, *trainers]
    stack.until(lambda: {stack.status(each).get("peer") for each in again} == set(names), "all of them, started again")
    goes_on(stack, again)

    # All are killed at once.
    stack.compose("kill")
    stack.compose("up", "--detach")
    stack.until(lambda: {stack.status(each).get("peer") for each in again} == set(names), "all of them, after the kill")
    goes_on(stack, again)

    # All are gone; what their volumes hold is enough for new containers to be who they were, and to go on.
    before = max(rounds(stack, each) for each in again)
    stack.compose("down", "--timeout", "45")
    stack.compose("up", "--detach")
    fresh = [*stack.containers("bootstrap"), *stack.containers("trainer")]
    assert not set(fresh) & set(again)
    stack.until(lambda: {stack.status(each).get("peer") for each in fresh} == set(names), "the same peers")
    stack.until(lambda: min(rounds(stack, each) for each in fresh) > before, "rounds beyond those before the stop")

    stack.compose("down", "--volumes", "--timeout", "20")
    assert stack.left() == []


def goes_on(stack: Stack, containers: list[str]) -> None:
    """Whether all of them commit another round."""
    reached = max(rounds(stack, each) for each in containers)
    stack.until(lambda: min(rounds(stack, each) for each in containers) > reached, "another round")


def rounds(stack: Stack, container: str) -> int:
    """The rounds that a container's node has committed."""
    return int(stack.status(container).get("round", -1))


def assert_confined(stack: Stack, bootstrap: str, trainers: list[str]) -> None:
    """Health checks pass, nobody is root, and of all ports only the bootstrap node's page is to be seen, from here."""

    def health(container: str) -> str:
        return stack.docker("inspect", "--format", "{{.State.Health.Status}}", container).strip()

    stack.until(lambda: {health(each) for each in [bootstrap, *trainers]} == {"healthy"}, "health")
    assert {stack.docker("exec", each, "id", "-u").strip() for each in trainers} == {"10001"}
    assert stack.docker("port", bootstrap).strip() == f"{stack.page_port}/tcp -> 127.0.0.1:{stack.page_port}"
    assert f"http://127.0.0.1:{stack.page_port}/" in stack.docker("exec", bootstrap, "shoal", "status")
    assert [stack.docker("port", each) for each in trainers] == ["", "", ""]


def test_the_readmes_start(stack: Stack) -> None:
    faulthandler.cancel_dump_traceback_later()  # it builds the image, unless that is there already
    ((up, status, down),) = blocks(COMPOSE)
    stack.types(up)
    bootstrap, *_ = stack.containers("bootstrap")
    stack.until(lambda: rounds(stack, bootstrap) >= 1, "a round")
    assert "stdlib (" in stack.types(status)
    stack.types(down)
    assert stack.docker("ps", "--quiet", "--filter", f"name={stack.project}") == ""


def test_from_an_empty_container_to_a_counted_round_in_three_commands(environ: dict[str, str], tmp_path: Path) -> None:
    """One container founds a run by the README's lines. The other, empty, installs the wheel, joins, and is counted."""
    faulthandler.cancel_dump_traceback_later()  # wheels are built and installed
    install = next(line for line in blocks(INSTALL)[0] if line.startswith("pip "))
    found, (join, status) = blocks(TWO)
    with EmptyContainers(environ, tmp_path) as containers:
        first, second = containers.start("first"), containers.start("second")
        containers.write_notes(first)
        link = link_in([containers.types(first, line) for line in (install, *found)][-1])

        containers.types(second, "! command -v cc")  # nothing can be compiled here
        containers.types(second, install)
        installed = time.monotonic()
        containers.types(second, join.replace("LINK", link))
        containers.until_counted(second)
        took = time.monotonic() - installed
        said = containers.types(second, status)
    print(f"\nan empty container was counted in a round {took:.1f} s after installing had ended\n{said}")
    assert "text (" in said
    assert took < (
        180 if "PYTEST_XDIST_WORKER" in os.environ else 60
    )  # beside other tests the seconds are theirs as well


@pytest.mark.parametrize("command", [["docker", "compose"], ["docker-compose"]], ids=["v2", "v1"])
def test_both_generations_of_compose_read_the_file(command: list[str], environ: dict[str, str]) -> None:
    if command not in compose_commands():
        pytest.skip(f"{' '.join(command)} is not installed")
    found = subprocess.run(
        [*command, "--profile", "gpu", "config"],
        cwd=ROOT,
        env=os.environ | environ | {"SHOAL_PEERS": "5"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert "scale: 5" in found.stdout
    assert "driver: nvidia" in found.stdout
