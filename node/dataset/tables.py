"""Rows of tables as texts: of files of JSON lines, and of parquet. Each row's text has a name of its own.

So rows are split like files into what is trained on and what is held out. A column may say of which domain a row is:
that comes first in its name, so that parts of the data are chosen by it as by folders. Members who get a run's data
from others get the texts, and need none of what reads tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.node.dataset.columns import Columns
from shoal.node.models import extra
from shoal.protocol.errors import LocalError

SUFFIXES = (".jsonl", ".parquet")
MAX_DOMAIN = 64  # characters of a row's name
OTHER = "other"  # the domain of a row that does not say any


def is_table(path: Path) -> bool:
    """Whether rows are to be looked for in a file."""
    return path.suffix in SUFFIXES


def rows(name: str, path: Path, columns: Columns) -> Iterator[tuple[str, bytes]]:
    """Name and content of the texts in a table, but of rows without text. LocalError if it cannot be read."""
    try:
        for number, (text, *domain) in enumerate(_values(path, columns.wanted)):
            if isinstance(text, str) and text:
                folder = "".join(f"{_folder(each)}/" for each in domain)
                yield f"{folder}{name}/{number:09}", text.encode("utf-8", "replace")
    except OSError as error:
        raise LocalError(f"cannot read {path}: {error}") from error


def _folder(domain: Any) -> str:
    """A domain as one part of a path."""
    word = re.sub(r"[^\w.+-]+", "_", str(domain)) if isinstance(domain, str | int) else ""
    return word[:MAX_DOMAIN].strip(".") or OTHER


def _values(path: Path, columns: list[str]) -> Iterator[list[Any]]:
    return _of_lines(path, columns) if path.suffix == ".jsonl" else _of_parquet(path, columns)


def _of_lines(path: Path, columns: list[str]) -> Iterator[list[Any]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                values = [row[column] for column in columns]
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                wanted = " and ".join(f"a column {column!r}" for column in columns)
                raise LocalError(f"line {number} of {path} is no JSON object with {wanted}") from error
            yield values


def _of_parquet(path: Path, columns: list[str]) -> Iterator[list[Any]]:
    reader = extra.parquet()
    try:
        with reader.ParquetFile(path) as file:
            names = file.schema_arrow.names
            for missing in (column for column in columns if column not in names):
                raise LocalError(f"{path} has no column {missing!r}, but {', '.join(names)}")
            for batch in file.iter_batches(columns=columns):
                for row in batch.to_pylist():
                    yield [row[column] for column in columns]
    except (ValueError, OSError) as error:  # pyarrow's own errors are ValueErrors
        raise LocalError(f"{path} cannot be read as parquet: {error}") from error
