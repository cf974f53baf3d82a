"""All tests here need an NVIDIA GPU that torch can use."""

from __future__ import annotations

import pytest
import torch

from tests.tiers import requires


@pytest.fixture(autouse=True, scope="session")
def gpu() -> None:
    requires("gpu", torch.cuda.is_available(), "torch finds no NVIDIA GPU")
