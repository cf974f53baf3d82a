"""Fixtures: processes that end with their test, and daemons that stay for the next play."""

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
    """A swarm that all plays of this process share."""
    with Swarm(tmp_path_factory.mktemp("swarm")) as swarm:
        yield swarm


@pytest.fixture
def swarm(standing: Swarm) -> Iterator[Swarm]:
    """The shared swarm, in no run at the start of a play."""
    yield standing
    standing.tidy_up()
