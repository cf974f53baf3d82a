"""Fixtures: processes that end with their test, and daemons that stay for the next play."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shoal.node.base.fork_server import ForkServer
from shoal.node.client.up.processes import Children, fork_server
from tests.integration.swarm import Swarm


@pytest.fixture(scope="session")
def forking() -> Iterator[ForkServer]:
    """Forks the nodes of all tests of this process, and their workers, which need not import torch each."""
    with fork_server() as server:
        yield server


@pytest.fixture
def children(forking: ForkServer) -> Iterator[Children]:
    with Children(server=forking) as started:
        yield started


@pytest.fixture(scope="session")
def standing(tmp_path_factory: pytest.TempPathFactory, forking: ForkServer) -> Iterator[Swarm]:
    """A swarm that all plays of this process share."""
    with Swarm(tmp_path_factory.mktemp("swarm"), forking) as swarm:
        yield swarm


@pytest.fixture
def swarm(standing: Swarm) -> Iterator[Swarm]:
    """The shared swarm, in no run at the start of a play."""
    yield standing
    standing.tidy_up()
