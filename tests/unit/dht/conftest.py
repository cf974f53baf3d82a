"""What holds for every test of the DHT's parts: what it draws does not depend on which tests ran before."""

from __future__ import annotations

import pytest

from tests.unit.dht.core_kit import RNG


@pytest.fixture(autouse=True)
def _own_draws(request: pytest.FixtureRequest) -> None:
    RNG.seed(request.node.name)
