"""What the documents point to exists: files behind links, targets behind `make`, flags behind `shoal`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from shoal.dht.link import parse_link
from shoal.node.client.cli import NEED_NO_FOLDER
from shoal.node.client.cli.app import app
from tests.architecture import LAYERS

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8"))
    assert not [target for target in targets if not (document.parent / target).exists()]


def test_the_links_to_runs_that_documents_show_are_good_ones() -> None:
    shown = re.findall(r"\bshoal2\w{20,}", TEXT)
    assert shown
    assert all(parse_link(link).addresses for link in shown)


def test_every_layer_is_on_the_map() -> None:
    """docs/architecture.md draws the layers that tests/architecture.py holds, by the names of their folders."""
    drawing = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("## Layers")[1].split("## ")[0]
    folders = {layer.split("/")[-1].removesuffix(".py") for layer in LAYERS} - {"memory", "gateway"}
    assert not [folder for folder in folders if not re.search(rf"\b{folder}\b", drawing)]


def test_decisions_have_three_parts() -> None:
    text = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    entries = re.findall(r"\n\n### (.+)((?:\n.+)+)", text)
    assert len({title for title, _ in entries}) == text.count("\n### ") > 30
    parts = [f"- **{part}**" for part in ("What", "Why", "Changes if")]
    assert [title for title, body in entries if re.findall(r"(?m)^- \*\*.+?\*\*", body) != parts] == []


def test_decisions_are_named_as_they_are_titled() -> None:
    text = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    titles = re.findall(r"(?m)^### (.+)", text)
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    linked = re.findall(r"decisions\.md#([^)\s]+)\)", TEXT)
    assert linked
    assert set(linked) <= anchors
    for path in (path for name in ("protocol", "dht", "node") for path in (ROOT / name).rglob("*.py")):
        quoted = re.findall(r'"([^"]+)"\s+in\s+docs/decisions\.md', path.read_text(encoding="utf-8"))
        assert set(quoted) <= set(titles), path


def test_the_glossary_has_each_term_once_in_order_and_is_linked() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = [term.lower() for term in re.findall(r"(?m)^- \*\*(.+?)\*\*: ", text)]
    assert terms == sorted(set(terms))
    assert {"peer", "round", "roster", "owner", "chunk", "pseudo-gradient", "manifest", "worker"} <= set(terms)
    assert len(terms) == text.count("\n- ")
    for path, link in (
        (ROOT / "README.md", "(docs/glossary.md)"),
        (ROOT / "docs" / "architecture.md", "(glossary.md)"),
    ):
        assert link in path.read_text(encoding="utf-8"), path


@pytest.mark.parametrize("package", ["protocol", "dht", "node"])
def test_every_file_that_a_docstring_or_comment_names_exists(package: str) -> None:
    """By its name, or the end of its path: `quorum.py`, `rounds/agreement/quorum.py`."""
    files = [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if ".venv" not in path.parts]
    ends = {file.split("/", start)[-1] for file in files for start in range(file.count("/") + 1)}
    for path in (ROOT / package).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        named = re.findall(r"(?<![\w/.*{}$-])((?:\w+/)*\w+\.py)\b", text)
        assert not set(named) - ends, f"{path} names what is not there"


def test_there_is_a_way_for_each_thing_that_is_added_often() -> None:
    """docs/contributing.md says which files to touch, code, tests and documents; that they exist is tested above."""
    text = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    ways = {way.split("\n", 1)[0]: way for way in text.split("\n## ")[1:]}
    assert len(ways) == 10
    for title, way in ways.items():
        links = re.findall(r"\]\(([^)#:]+)", way)
        assert [link for link in links if link.endswith(".py") and "/tests/" not in link], title
        assert [link for link in links if "/tests/" in link], title


def test_commands_that_need_no_folder_are_commands() -> None:
    assert [command for command in NEED_NO_FOLDER if unknown_words(f"shoal {command}")] == []


def test_every_make_target_exists() -> None:
    mentioned = set(re.findall(r"(?:^|`)make ([a-z-]+)", TEXT, flags=re.MULTILINE))
    defined = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert {"swarm", "test", "install"} <= mentioned <= defined


def test_every_command_exists_and_knows_its_flags() -> None:
    lines = set(re.findall(r"^(?:make swarm|shoal)\b.*", TEXT, flags=re.MULTILINE))
    assert len(lines) > 50
    within = {" ".join(each.split()) for each in re.findall(r"`(shoal\s[^`]+)`", re.sub(r"(?ms)^```.*?^```", "", TEXT))}
    assert len(within) > 100
    lines |= {line for line in within if "frobnicate" not in line}  # a bad situation
    assert [(line, unknown) for line in sorted(lines) if (unknown := unknown_words(line))] == []


def unknown_words(line: str) -> list[str]:
    """The commands and flags in a line of a document that `shoal` does not have."""
    words = re.sub(r'[#"].*', "", line.replace('make swarm ARGS="', "shoal up ").replace("make swarm", "shoal up"))
    command: Any = typer.main.get_command(app)
    rest = words.split()[1:]
    while rest and not rest[0].startswith("-") and hasattr(command, "commands"):
        context = command.make_context("shoal", [], resilient_parsing=True)
        _, command, after = command.resolve_command(context, rest)
        if command is None:
            return rest[:1]
        rest = after
    known = {"--help"}.union(*(each.opts + each.secondary_opts for each in command.params))
    return [flag for flag in re.findall(r"--[a-z-]+", words) if flag not in known]


def test_a_command_or_flag_that_does_not_exist_is_noticed() -> None:
    assert unknown_words("shoal run create run.toml --frobnicate --from x") == ["--frobnicate"]
    assert unknown_words("shoal run frobnicate") == ["frobnicate"]


@pytest.mark.parametrize("name", ["promises.md", "fault-tolerance.md"])
def test_every_test_that_promises_are_held_by_exists(name: str) -> None:
    """These documents name tests after the files that they are in."""
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    named = re.findall(r"\]\(\.\./(tests/[\w/]+\.py)\):((?:,? `\w+`)+)", text)
    assert len(named) > 10
    for file, tests in named:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert not [test for test in re.findall(r"`(\w+)`", tests) if f"def {test}(" not in source], file
