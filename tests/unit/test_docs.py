"""What the documents point to exists: files behind links, targets behind `make`, flags behind `shoal`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8"))
    assert not [target for target in targets if not (document.parent / target).exists()]


def test_every_source_file_is_on_the_map() -> None:
    chart = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## Where is what")[2]
    named = set(re.findall(r"`([a-z_0-9]+)/?`", chart))
    parts = [path for name in ("protocol", "dht", "node") for path in (ROOT / name).iterdir()]
    there = {path.stem for path in parts if (path.suffix == ".py" or (path / "__init__.py").exists())}
    deeper = {path.stem for name in ("protocol", "dht", "node") for path in (ROOT / name).rglob("*.py")}
    assert there - {"__init__", "__main__"} <= named <= there | deeper


def test_decisions_are_numbered_in_order_and_have_three_parts() -> None:
    text = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    entries = re.findall(r"\n\n### (\d+)\. .+((?:\n.+)+)", text)
    assert [int(number) for number, _ in entries] == list(range(1, text.count("\n### ") + 1))
    assert "\n\n\n" not in text
    parts = [f"- **{part}**" for part in ("What", "Why", "Changes if")]
    assert all(re.findall(r"(?m)^- \*\*.+?\*\*", body) == parts for _, body in entries)
    referred = {int(number) for number in re.findall(r"\bdecision\s+(\d+)", TEXT)}
    assert referred
    assert max(referred) <= len(entries), "a decision that a document leans on is lost"


def test_every_make_target_exists() -> None:
    mentioned = set(re.findall(r"(?:^|`)make ([a-z-]+)", TEXT, flags=re.MULTILINE))
    defined = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert {"swarm", "test", "install"} <= mentioned <= defined


COMMANDS = sorted(set(re.findall(r"^(?:make swarm|shoal)\b.*", TEXT, flags=re.MULTILINE)))


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_knows_its_flags(line: str) -> None:
    words = re.sub(r'[#"].*', "", line.replace('make swarm ARGS="', "shoal up ").replace("make swarm", "shoal up"))
    path = re.match(r"shoal((?: [a-z]+)*)", words)
    assert path is not None
    names = path[1].split()[: 2 if path[1].split()[0] in ("node", "run", "ckpt") else 1]
    command = [sys.executable, "-m", "shoal.node", *names, "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert not [flag for flag in re.findall(r"--[a-z-]+", words) if flag not in shown]
