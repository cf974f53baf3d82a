"""What `make` installs for whom: a newcomer gets no developer's tools."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = {"mypy", "ruff", "pytest", "playwright", "transformers"}
pytestmark = pytest.mark.skipif(
    not shutil.which("make") or not shutil.which("cc"), reason="needs make and a C compiler"
)


def installed_by(target: str, venv: Path) -> set[str]:
    """What pip would be asked to install, where nothing is there yet."""
    outside = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", "--dry-run", target, f"VENV={venv}", f"PYTHON={sys.executable}"]
    done = subprocess.run(command, cwd=ROOT, env=outside, capture_output=True, text=True, timeout=60, check=True)
    return set(re.findall(r"pip install .* -e (\S+)", done.stdout))


def test_a_swarm_needs_no_developers_tools(tmp_path: Path) -> None:
    assert installed_by("swarm", tmp_path / "venv") == {"."}
    assert installed_by("test", tmp_path / "venv") == {".", "'.[dev]'"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[^\w-]", each)[0] for each in project["dependencies"]}
    assert "torch" in names
    assert not names & TOOLS


def test_a_wheel_needs_neither_torch_nor_tools(tmp_path: Path) -> None:
    assert installed_by("wheel", tmp_path / "venv") == set()
