"""Processes that end with the test that started them, and daemons that stay for the next play."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shoal.node.client.up.processes import Children
from tests.integration.swarm import Swarm


@pytest.fixture
def children() -> Iterator[Children]:
    with Children() as started:
        yield started


@pytest.fixture(scope="session")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    """A swarm for all plays of this process."""
    with Swarm(tmp_path_factory.mktemp("swarm")) as swarm:
        yield swarm


@pytest.fixture
def swarm(standing: Swarm) -> Iterator[Swarm]:
    """Daemons in no run."""
    yield standing
    standing.tidy_up()
