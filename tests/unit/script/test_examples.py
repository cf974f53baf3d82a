"""Which modules scripts import when, and the example of a method of your own."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.node.client.script.api import _check_is_for_scripts
from shoal.protocol.base.errors import LocalError

EXAMPLE = Path(__file__).parents[3] / "examples" / "custom_method.py"


def test_scripts_import_torch_and_nobody_else_does() -> None:
    look = (
        "import sys, shoal.node; assert 'torch' not in sys.modules; from shoal.node import join; print(join.__name__)"
    )
    assert subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout == "join\n"


def test_there_is_nothing_else_in_the_package() -> None:
    with pytest.raises(ImportError, match="cannot import name 'leave'"):
        from shoal.node import leave  # type: ignore[attr-defined]  # noqa: F401


def test_a_method_of_ones_own_fits_on_a_page_and_learns() -> None:
    assert EXAMPLE.read_text().count("\n") < 80
    names = runpy.run_path(str(EXAMPLE))
    first, *_, last = names["losses"](names["LionDiLoCo"](names["INNER_STEPS"]), rounds=3)
    assert last < 0.9 * first


def test_a_run_that_nodes_train_themselves_is_not_for_scripts() -> None:
    _check_is_for_scripts({"name": "mine", "model": {"name": "custom"}})
    with pytest.raises(LocalError, match="`shoal run join` takes part in it"):
        _check_is_for_scripts({"name": "stdlib", "model": {"name": "llama"}})
