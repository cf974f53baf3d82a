"""TOML texts of people: writing tables, and finding the line of a key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

HEADER = re.compile(r"\s*\[\[?([^\[\]]+)\]")
ASSIGNMENT = re.compile(r"""\s*([\w."' -]+?)\s*=""")


def dump(table: dict[str, Any]) -> str:
    """A text that reads back as `table`, which holds JSON's types; None is left out, as TOML has no null."""
    sections = {name: value for name, value in table.items() if isinstance(value, dict)}
    lines = list(_assignments({name: value for name, value in table.items() if name not in sections}))
    for name, section in sections.items():
        lines += ["", f"[{name}]", *_assignments(section)]
    return "\n".join(lines) + "\n"


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
    """The parts of a dotted key."""
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
