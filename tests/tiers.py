"""Tiers of tests that need something this machine may lack: a browser, a container engine, network namespaces, a GPU.

A tier that cannot run is skipped, and says why. `SHOAL_REQUIRE=browser,compose` names tiers that must run: there a
missing thing is a failure. So a machine that is meant to run a tier cannot lose it unnoticed.
"""

from __future__ import annotations

import os

import pytest

TIERS = ("netlab", "compose", "browser", "gpu")
VARIABLE = "SHOAL_REQUIRE"


def required() -> list[str]:
    """The tiers that `SHOAL_REQUIRE` names; ValueError for one that does not exist."""
    named = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    if unknown := [name for name in named if name not in TIERS]:
        raise ValueError(f"{VARIABLE} names the tier {unknown[0]}; the tiers are {', '.join(TIERS)}")
    return named


def requires(tier: str, condition: object, why: str) -> None:
    """Go on if `condition` holds; else skip with `why`, or fail if the tier must run.

    For the top of a test module, where it stands for all of its tests, or for a fixture.
    """
    if tier not in TIERS:
        raise ValueError(f"there is no tier {tier}")
    must_run = tier in required()
    if condition:
        return
    if must_run:
        pytest.fail(f"{VARIABLE} asks for the tier {tier}, but {why}", pytrace=False)
    pytest.skip(f"TIER {tier} DOES NOT RUN: {why}", allow_module_level=True)
