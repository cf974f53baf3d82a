"""The command that adds an extra is one for the very interpreter that lacks it."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

from shoal.node.base.extra import install_command, missing


def test_it_names_this_interpreter() -> None:
    assert install_command("hf") == f"{sys.executable} -m pip install 'shoal[hf]'"
    assert install_command("hf") in str(missing("transformers", "models of kind hf"))


def test_an_environment_of_uv_has_no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "distributions", lambda name: iter(()))
    monkeypatch.setattr(sys, "executable", "/home/me/my tools/bin/python")
    assert install_command("hf") == "uv pip install -p '/home/me/my tools/bin/python' 'shoal[hf]'"


def test_setuptools_can_be_imported_after_it() -> None:
    """As torch does to compile; on Python 3.11 whoever looks for pip by the import system breaks that."""
    code = "import shoal.node.base.extra, setuptools"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
