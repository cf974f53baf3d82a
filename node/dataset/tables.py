"""Rows of tables as texts: of files of JSON lines, and of parquet. Each row's text has a name of its own.

So rows are split like files into what is trained on and what is held out. Members who get a run's data from others get
the texts, and need none of what reads tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.node.models import extra
from shoal.protocol.errors import LocalError

SUFFIXES = (".jsonl", ".parquet")


def is_table(path: Path) -> bool:
    """Whether rows are to be looked for in a file."""
    return path.suffix in SUFFIXES


def rows(name: str, path: Path, column: str) -> Iterator[tuple[str, bytes]]:
    """Name and content of the texts in a table's column, but of rows without text. LocalError if it cannot be read."""
    try:
        for number, value in enumerate(_values(path, column)):
            if isinstance(value, str) and value:
                yield f"{name}/{number:09}", value.encode("utf-8", "replace")
    except OSError as error:
        raise LocalError(f"cannot read {path}: {error}") from error


def _values(path: Path, column: str) -> Iterator[Any]:
    return _of_lines(path, column) if path.suffix == ".jsonl" else _of_parquet(path, column)


def _of_lines(path: Path, column: str) -> Iterator[Any]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                yield row[column]
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise LocalError(f"line {number} of {path} is no JSON object with a column {column!r}") from error


def _of_parquet(path: Path, column: str) -> Iterator[Any]:
    reader = extra.parquet()
    try:
        with reader.ParquetFile(path) as file:
            if column not in file.schema_arrow.names:
                raise LocalError(f"{path} has no column {column!r}, but {', '.join(file.schema_arrow.names)}")
            for batch in file.iter_batches(columns=[column]):
                yield from batch.column(0).to_pylist()
    except (ValueError, OSError) as error:  # pyarrow's own errors are ValueErrors
        raise LocalError(f"{path} cannot be read as parquet: {error}") from error
