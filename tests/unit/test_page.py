"""The page's files: nothing from elsewhere, nothing inline, and third-party code exactly as recorded."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from shoal.node.client.cli.app import app
from shoal.node.daemon.web.server import PAGE as FOLDER
from shoal.node.manifest.starting import PURPOSES

VENDOR = FOLDER / "vendor"
OWN = sorted(path for path in FOLDER.iterdir() if path.is_file())
PAGE = (FOLDER / "index.html").read_text(encoding="utf-8")


def test_vendored_code_is_what_was_recorded() -> None:
    recorded = re.findall(r"^([0-9a-f]{64})  (\S+)$", (VENDOR / "VERSIONS").read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for _, name in recorded} == {"uPlot.iife.min.js", "uPlot.min.css"}
    for digest, name in recorded:
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name
    assert {path.name for path in VENDOR.iterdir()} == {name for _, name in recorded} | {"VERSIONS", "LICENSE-uPlot"}
    assert "MIT" in (VENDOR / "LICENSE-uPlot").read_text(encoding="utf-8")


def test_the_commands_that_an_empty_node_shows_are_there() -> None:
    (block,) = re.findall(r'<code class="block">(.*?)</code>', PAGE, re.DOTALL)
    for line in block.splitlines():
        shoal, *words = line.split()
        assert shoal == "shoal"
        command: Any = get_command(app)
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        assert not hasattr(command, "commands"), f"{line}: no such command"
        if command.name == "init":
            assert words[0] in PURPOSES


@pytest.mark.parametrize("file", OWN, ids=lambda path: path.name)
def test_nothing_comes_from_elsewhere_and_markup_is_never_made_of_text(file: Path) -> None:
    text = file.read_text(encoding="utf-8").replace('xmlns="http://www.w3.org/2000/svg"', "")
    for forbidden in (
        "http:",
        "https:",
        "@import",
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "eval(",
        "Function(",
    ):
        assert forbidden not in text, forbidden
    assert text.count("\n") <= 300
    assert max(map(len, text.splitlines())) <= 140


def test_there_is_no_inline_script_or_style() -> None:
    assert not re.findall(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon[a-z]+=|javascript:", PAGE)


def test_what_is_referred_to_is_there() -> None:
    for reference in re.findall(r'(?:src|href)="(/[^"]*)"', PAGE):
        assert (FOLDER / reference.removeprefix("/page/")).is_file(), reference
    for file in FOLDER.glob("*.js"):
        text = file.read_text(encoding="utf-8")
        for module in re.findall(r'from "\./([^"]+)"', text):
            assert (FOLDER / module).is_file(), f"{file.name} imports {module}"
    named = {name for file in FOLDER.glob("*.js") for name in re.findall(r'byId\("([a-z-]+)"\)', file.read_text())}
    assert named <= set(re.findall(r'\bid="([a-z-]+)"', PAGE))


def test_the_wheel_has_all_of_it() -> None:
    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["*"]
    assert all(any(path.match(pattern) for pattern in patterns) for path in FOLDER.rglob("*") if path.is_file())
