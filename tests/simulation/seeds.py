"""How many seeds a simulation is run with: a few each time, more where all tests run."""

from __future__ import annotations

import pytest
from _pytest.mark import ParameterSet


def seeds(quick: int, most: int) -> list[int | ParameterSet]:
    """The first `quick` seeds; those up to `most` are slow."""
    return [*range(quick), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(quick, most))]
