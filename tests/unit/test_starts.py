"""The README's first screen and starts are as short as they promise to be; that they work is tested where they run."""

from __future__ import annotations

import re

import pytest

from tests.starts import COMPOSE, GPU, INSTALL, ROOT, TWO, blocks, link_in


@pytest.mark.parametrize("title", [GPU, TWO, COMPOSE])
def test_a_start_is_at_most_five_lines(title: str) -> None:
    lines = [line for block in blocks(title) for line in block]
    assert 0 < len(lines) <= 5
    assert all(re.match(r"shoal |docker compose ", line) for line in lines)


def test_the_first_screen_says_what_and_why_with_a_picture() -> None:
    screen = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## ")[0]
    assert screen.count("\n") <= 40
    assert {"docs/page.png", "docs/report.png"} <= set(re.findall(r"!\[[^]]+\]\(([^)]+)\)", screen))


def test_shoal_is_installed_from_a_file() -> None:
    """It is on no index: whoever typed its bare name, with an extra or without, would get something else.

    Only `install_command` names it so, for the very environment that has Shoal.
    """
    (lines,) = blocks(INSTALL)
    assert [line for line in lines if "install" in line and "dist/shoal-*.whl" not in line] == []
    read = [ROOT / "README.md", ROOT / "Makefile", ROOT / "pyproject.toml"]
    kinds = (".md", ".toml", ".service", ".py", ".js")
    for folder in ("docs", "deploy", "examples", "benchmarks", "node", "dht", "protocol", "tests"):
        read += [path for path in (ROOT / folder).rglob("*") if path.suffix in kinds]
    bare = re.compile(r"install (-\S+ )*['\"]?shoal\b")
    found = {path.relative_to(ROOT).as_posix() for path in read if bare.search(path.read_text(encoding="utf-8"))}
    assert found - {"node/base/extra.py", "tests/unit/test_extra.py"} == set()


def test_what_the_comparison_is_shown_by_exists() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## Compared\n")[1].split("\n## ")[0]
    rows = [row.split("|")[1:-1] for row in text.splitlines() if row.startswith("| [")]
    assert len(rows) == 6
    for name, ours, shown_by, theirs in rows:
        assert ours.strip(), name
        assert theirs.strip(), name
        commands = [command for command in re.findall(r"`([^`]+)`", shown_by) if command != "make swarm"]
        assert commands or "make swarm" in shown_by, name
        assert [command for command in commands if not (ROOT / command.split()[0]).exists()] == []


def test_a_link_is_found_in_what_is_said() -> None:
    assert link_in("on another machine:\n\nshoal run join shoal2abc\n\n") == "shoal2abc"
