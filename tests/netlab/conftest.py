"""Fixtures: a lab for each test, and processes that end with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shoal.node.client.up.processes import Children
from tests.netlab.lab import Lab, network


@pytest.fixture
def lab() -> Iterator[Lab]:
    with network() as lab:
        yield lab


@pytest.fixture
def children(lab: Lab) -> Iterator[Children]:
    with Children() as children:
        yield children
