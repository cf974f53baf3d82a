"""The command that adds an extra is one for the very interpreter that lacks it."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from shoal.node.base.extra import install_command, missing


def test_it_names_this_interpreter() -> None:
    assert install_command("hf") == f"{sys.executable} -m pip install 'shoal[hf]'"
    assert install_command("hf") in str(missing("transformers", "models of kind hf"))


def test_an_environment_of_uv_has_no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "executable", "/home/me/my tools/bin/python")
    assert install_command("hf") == "uv pip install -p '/home/me/my tools/bin/python' 'shoal[hf]'"
