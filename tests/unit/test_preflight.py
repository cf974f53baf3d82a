"""`make preflight`: a missing tool is named in one sentence with its package, and make stops."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bad_situations import Left, shown

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("cc")
pytestmark = pytest.mark.skipif(not shutil.which("make") or not COMPILER, reason="needs make and a C compiler")


def preflight(*settings: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", "preflight", f"PYTHON={sys.executable}", *settings]
    outside = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return subprocess.run(command, cwd=ROOT, env=outside, capture_output=True, text=True, timeout=60)


@pytest.fixture
def compiler_without(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A C compiler that does not find one header."""
    script = tmp_path / "cc"
    script.write_text(
        f'#!/bin/sh\nsource=$(cat)\ncase "$source" in *{request.param}*) exit 1 ;; esac\n'
        f'printf "%s\\n" "$source" | {COMPILER} "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)
    return str(script)


def assert_one_sentence(result: subprocess.CompletedProcess[str], *words: str) -> None:
    assert result.returncode == 2, result.stderr
    sentence, make_stopped = result.stderr.splitlines()
    assert sentence.startswith("Shoal needs ")
    assert all(word in sentence for word in words), sentence
    assert make_stopped.startswith("make: ***")


def test_a_complete_machine_passes_in_silence() -> None:
    result = preflight()
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("python", ["", "no-such-python", "false"])
def test_no_python_that_is_new_enough(python: str) -> None:
    assert_one_sentence(preflight(f"PYTHON={python}"), "Python 3.11", "apt-get install python3.11", "brew install")


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence says which dependency wants it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    result = preflight("CC=no-such-compiler")
    shown("there is no compiler", result.returncode, result.stderr, Left.in_folder(tmp_path))
    assert_one_sentence(result, "a C compiler to compile fastecdsa", "libp2p", "build-essential", "gcc", "xcode-select")


@pytest.mark.parametrize("compiler_without", ["gmp.h"], indirect=True)
def test_no_gmp(compiler_without: str) -> None:
    assert_one_sentence(
        preflight(f"CC={compiler_without}"),
        "libgmp to compile fastecdsa",
        "libgmp-dev",
        "gmp-devel",
        "brew install gmp",
    )


@pytest.mark.parametrize("compiler_without", ["Python.h"], indirect=True)
def test_no_python_headers(compiler_without: str) -> None:
    assert_one_sentence(preflight(f"CC={compiler_without}"), "the headers of Python", "-dev", "-devel")
