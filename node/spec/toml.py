"""TOML texts of manifests: written from tables, and with the files that they name in the place of names.

A manifest is data for any machine, so a path in it means something only to whoever writes it: `[model] config` may name
a config.json, which is put in its place before the text goes anywhere.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.protocol.errors import LocalError

MAX_FILE = 64 << 10


def dump(table: dict[str, Any]) -> str:
    """A text that reads back as `table`, which is JSON's; what is None is left out, as TOML has no null."""
    sections = {name: value for name, value in table.items() if isinstance(value, dict)}
    lines = list(_assignments({name: value for name, value in table.items() if name not in sections}))
    for name, section in sections.items():
        lines += ["", f"[{name}]", *_assignments(section)]
    return "\n".join(lines) + "\n"


def with_config(text: str, folder: Path) -> str:
    """The text, with the config that it names by a path (relative to `folder`) in place of the path."""
    try:
        table = tomllib.loads(text)
        path = table["model"]["config"]
    except (tomllib.TOMLDecodeError, RecursionError, ValueError, KeyError, TypeError):
        return text  # whoever reads the manifest says what is wrong with it
    if not isinstance(path, str) or path.lstrip().startswith("{"):
        return text
    try:
        with (folder / path).open("rb") as file:
            content = file.read(MAX_FILE + 1)
        table["model"]["config"] = json.dumps(json.loads(content), separators=(",", ":"))
    except OSError as error:
        raise LocalError(f"cannot read model.config {folder / path}: {error.strerror}") from error
    except ValueError as error:
        raise LocalError(f"model.config {folder / path} is no config.json: {error}") from error
    return dump(table)


def _assignments(table: dict[str, Any]) -> Iterator[str]:
    return (f"{_key(key)} = {_inline(value)}" for key, value in table.items() if value is not None)


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else json.dumps(key)


def _inline(value: Any) -> str:
    """JSON's scalars are TOML's, and its lists; its tables are written otherwise."""
    if isinstance(value, dict):
        return f"{{ {', '.join(_assignments(value))} }}"
    return f"[{', '.join(map(_inline, value))}]" if isinstance(value, list | tuple) else json.dumps(value)
