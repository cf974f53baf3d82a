"""TOML texts of manifests: writing tables, finding the line of a key, and inlining the config.json that a text names.

A manifest must mean the same on any machine, so a path in it is replaced before the text is used: `[model] config` may
be the path of a config.json, whose content takes its place.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shoal.node.base.textfile import MARK, parse_table, read_text, shown

MAX_FILE = 64 << 10
HEADER = re.compile(r"\s*\[\[?([^\[\]]+)\]")
ASSIGNMENT = re.compile(r"""\s*([\w."' -]+?)\s*=""")


def dump(table: dict[str, Any]) -> str:
    """A text that reads back as `table`, which holds JSON's types; None is left out, as TOML has no null."""
    sections = {name: value for name, value in table.items() if isinstance(value, dict)}
    lines = list(_assignments({name: value for name, value in table.items() if name not in sections}))
    for name, section in sections.items():
        lines += ["", f"[{name}]", *_assignments(section)]
    return "\n".join(lines) + "\n"


def with_config(text: str, folder: Path) -> str:
    """The text with the content of the config.json in place of its path, which is relative to `folder`."""
    text = text.removeprefix(MARK)
    try:
        table = tomllib.loads(text)
        path = table["model"]["config"]
    except (tomllib.TOMLDecodeError, RecursionError, ValueError, KeyError, TypeError):
        return text  # parsing the manifest reports what is wrong with it
    if not isinstance(path, str) or path.lstrip().startswith("{"):
        return text
    config = parse_table(read_text(folder / path, "model.config", MAX_FILE), f"model.config {shown(folder / path)}")
    table["model"]["config"] = json.dumps(config, separators=(",", ":"))
    return _with_line(text, table) or dump(table)


def _with_line(text: str, table: dict[str, Any]) -> str | None:
    """The text with the config of `table` in its line, so that lines keep their numbers; None if it spans several."""
    lines, number = text.split("\n"), line_of(text, ("model", "config"))
    if number is None:
        return None
    before = lines[number - 1].partition("=")[0]
    lines[number - 1] = f"{before}= {inline(table['model']['config'])}"
    try:
        made = "\n".join(lines)
        return made if tomllib.loads(made) == table else None
    except (tomllib.TOMLDecodeError, RecursionError):
        return None


def line_of(text: str, key: Sequence[str]) -> int | None:
    """The number of the line that sets a key in valid TOML; else the line of the innermost table that lacks it."""
    found, most, table, counts = None, 0, list[str](), dict[tuple[str, ...], int]()
    for number, line in enumerate(text.split("\n"), start=1):
        if (header := HEADER.match(line)) is not None:
            said = table = _counted(parts_of(header[1]), counts, line.lstrip().startswith("[["))
        elif (assignment := ASSIGNMENT.match(line)) is not None:
            said = [*table, *parts_of(assignment[1])]
        else:
            continue
        shared = said[: len(key)]
        if most < len(shared) and list(key[: len(shared)]) == shared:
            found, most = number, len(shared)
    return found


def _counted(parts: Sequence[str], counts: dict[tuple[str, ...], int], is_element: bool) -> list[str]:
    """The parts of a header with the numbers of elements, as experts.parts.1; `counts` has the last of each list."""
    path: tuple[str, ...] = ()
    for place, part in enumerate(parts, start=1):
        path = (*path, part)
        if is_element and place == len(parts):
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, str(counts[path]))
    return list(path)


def parts_of(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]


def _assignments(table: dict[str, Any]) -> Iterator[str]:
    return (f"{_key(key)} = {inline(value)}" for key, value in table.items() if value is not None)


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else json.dumps(key)


def inline(value: Any) -> str:
    """A value in one line: scalars and lists are written as in JSON, tables as TOML's inline tables."""
    if isinstance(value, dict):
        return f"{{ {', '.join(_assignments(value))} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(inline, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
