"""Inlines the config.json that a manifest's text names.

A manifest must mean the same on any machine, so a path in it is replaced before the text is used: `[model] config` may
be the path of a config.json, whose content takes its place.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from shoal.node.base.textfile import MARK, parse_table, read_text, shown
from shoal.node.base.toml import dump, inline, line_of

MAX_FILE = 64 << 10  # bytes


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
