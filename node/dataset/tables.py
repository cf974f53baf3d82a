"""Rows of tables as texts: of files of JSON, CSV and parquet. Each row's text has a name of its own.

So rows are split like files into what is trained on and what is held out. A column may say of which domain a row is:
that comes first in its name, so that parts of the data are chosen by it as by folders. Members who get a run's data
from others get the texts, and need none of what reads tables.

| suffix | |
|---|---|
| .jsonl .ndjson .json | one object a line, or one array of objects |
| .csv .tsv | a line of names, then rows; separated by commas, semicolons, tabs or bars, whichever gives those names |
| .parquet | |

All but parquet may be compressed: .gz, .bz2, .xz, .zst. A row whose text is null or empty, or holds a NUL, is left out
and counted. Whatever else is no text is an error that names the line.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from shoal.node.dataset.columns import Columns
from shoal.node.dataset.left_out import LeftOut
from shoal.node.models import extra
from shoal.node.textfile import MARKING, checked, encoding_of, parse_json, shown, unreadable
from shoal.protocol.errors import LocalError

JSON, SEPARATED, PARQUET = (".jsonl", ".ndjson", ".json"), (".csv", ".tsv"), (".parquet",)
OPENERS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.GzipFile,
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": lambda path: extra.arrow().CompressedInputStream(path.open("rb"), "zstd"),
}
DAMAGED = (EOFError, zlib.error, lzma.LZMAError)  # of a compressed file; others are OSErrors without a number
SEPARATORS = {".csv": ",;\t|", ".tsv": "\t,;|"}  # the likeliest first
MAX_FIELD = (1 << 31) - 1  # bytes of a field of CSV: those of a C long on every system
MAX_NAMES, MAX_NAME = 20, 60  # names of columns in a message, and characters of each
MAX_DOMAIN = 64  # characters of a row's name
OTHER = "other"  # the domain of a row that does not say any
NUL = "\0"


class Document(Exception):
    """A file of JSON is one object that has none of the columns: settings, say, and no table."""


class Row(NamedTuple):
    """What stands in the columns, and the line or row that it begins at."""

    place: str
    values: list[Any]


def is_table(path: Path) -> bool:
    """Whether rows are to be looked for in a file."""
    return _suffix(path) in JSON + SEPARATED + PARQUET


def is_compressed(path: Path) -> bool:
    """Whether a file's name says so."""
    return path.suffix.lower() in OPENERS


def rows(name: str, path: Path, columns: Columns, left_out: LeftOut | None = None) -> Iterator[tuple[str, bytes]]:
    """Name and content of the texts in a table, but of rows without text.

    LocalError if it cannot be read, or a row's text is none; Document before any row.
    """
    noted = left_out if left_out is not None else LeftOut()
    for number, row in enumerate(_rows(path, columns)):
        where = f"{row.place} of {shown(path)}"
        text, *domain = row.values
        text = text_of(text, columns.text, where)
        if text and NUL not in text:
            folder = "".join(f"{_folder(each)}/" for each in domain)
            yield f"{folder}{name}/{number:09}", text.encode("utf-8", "replace")
        else:
            noted.rows.add("holds a NUL, which no text does" if text else f"has no text in {columns.text!r}", where)


def text_of(value: Any, column: str, where: str) -> str:
    """The text in a row's column, empty if it is null; LocalError if it is anything else. `where` names the row."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bytes):  # as some write text into parquet
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    what = f"the column {column!r} in {where} holds {_kind(value)}"
    raise LocalError(f"{what}, and no text: name a column of text, or write text there")


def _listed(names: Iterable[Any]) -> str:
    """A file's own names, as many and as much of each as a person may want to read."""
    first = [
        name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}..." for name in map(str, islice(names, MAX_NAMES + 1))
    ]
    return ", ".join([*first[:MAX_NAMES], *(["..."] if len(first) > MAX_NAMES else [])]) or "none"


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return f"an object of {_listed(map(repr, value))}"
    kinds: dict[type, str] = {bool: "a truth value", int: "a number", float: "a number", list: "a list", bytes: "bytes"}
    return kinds.get(type(value), f"a {type(value).__name__}")


def _folder(domain: Any) -> str:
    """A domain as one part of a path."""
    word = re.sub(r"[^\w.+-]+", "_", str(domain)) if isinstance(domain, str | int) else ""
    return word[:MAX_DOMAIN].strip(".") or OTHER


def _suffix(path: Path) -> str:
    """Which kind of table it is by its name."""
    name = path.name.lower()
    bare = Path(name[: -len(path.suffix)]) if is_compressed(path) else Path(name)
    return bare.suffix if not is_compressed(path) or bare.suffix not in PARQUET else ""


def _rows(path: Path, columns: Columns) -> Iterator[Row]:
    if _suffix(path) in PARQUET:
        yield from _of_parquet(path, columns)
        return
    try:
        with _open(path) as file:
            head = file.peek(4)[:4]
            text = io.TextIOWrapper(file, encoding_of(head), MARKING, None if _suffix(path) in JSON else "")
            lines = checked(text, shown(path))
            read = _of_json if _suffix(path) in JSON else _of_separated
            yield from read(lines, path, columns)
    except (OSError, *DAMAGED) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise LocalError(unreadable(shown(path), error)) from error
        raise LocalError(f"{shown(path)} is damaged, or was cut short: {error}; get it again") from error


def _open(path: Path) -> io.BufferedReader:
    """Its bytes, unpacked."""
    file = OPENERS[path.suffix.lower()](path) if is_compressed(path) else path.open("rb", buffering=0)
    return io.BufferedReader(file)


# -- JSON -----------------------------------------------------------------------------------------------------


def _of_json(lines: Iterator[str], path: Path, columns: Columns) -> Iterator[Row]:
    numbered = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    first = next(numbered, None)
    if first is None:
        return

    def whole() -> Any:
        return parse_json("\n" * (first[0] - 1) + first[1] + "".join(lines), shown(path))

    if first[1].lstrip().startswith("["):
        for number, row in enumerate(whole(), start=1):
            yield _row(f"row {number}", row, path, columns)
        return
    if _suffix(path) != ".json":
        yield from (_of_line(*each, path, columns) for each in chain([first], numbered))
    elif not _is_json(first[1]):
        yield _of_document(whole(), path, columns)
    elif (second := next(numbered, None)) is None:
        yield _of_document(json.loads(first[1]), path, columns)
    else:
        yield from (_of_line(*each, path, columns) for each in chain([first, second], numbered))


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _of_document(value: Any, path: Path, columns: Columns) -> Row:
    if isinstance(value, dict) and any(column not in value for column in columns.wanted):
        raise Document
    return _row("the object", value, path, columns)


def _of_line(number: int, line: str, path: Path, columns: Columns) -> Row:
    try:
        return _row(f"line {number}", json.loads(line), path, columns)
    except (ValueError, RecursionError) as error:
        why = f"{error.msg} at its column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        cut = "" if line.endswith("\n") else "; it is the last line, and has no end: was the file cut short?"
        raise LocalError(
            f"line {number} of {shown(path)} is no JSON object with {columns.words}: {why}{cut}"
        ) from error


def _row(place: str, row: Any, path: Path, columns: Columns) -> Row:
    if isinstance(row, dict) and all(column in row for column in columns.wanted):
        return Row(place, [row[column] for column in columns.wanted])
    raise LocalError(f"{place} of {shown(path)} is no JSON object with {columns.words}, but {_kind(row)}")


# -- CSV ------------------------------------------------------------------------------------------------------


def _of_separated(lines: Iterator[str], path: Path, columns: Columns) -> Iterator[Row]:
    csv.field_size_limit(MAX_FIELD)
    before, head = next(((number, line) for number, line in enumerate(lines) if line.strip()), (0, ""))
    if not head:
        return
    separators = SEPARATORS[_suffix(path)]
    if said := re.fullmatch(
        r"sep=([^\w\r\n\"])\s*", head, re.IGNORECASE
    ):  # as some programs begin a file for themselves
        before, head, separators = before + 1, next(lines, ""), said[1]
    try:
        separator = max(separators, key=lambda each: _fit(head, each, columns))
    except csv.Error as error:
        where = f"line {before + 1} of {shown(path)}"
        raise LocalError(f"{where} is no line of names, as CSV begins with: {error}") from error
    reader = csv.reader(chain([head], lines), delimiter=separator, strict=True)
    try:
        names = [name.strip() for name in next(reader, [])]
        for missing in (column for column in columns.wanted if column not in names):
            raise LocalError(f"{shown(path)} has no column {missing!r}, but {_listed(names)}")
        at = [names.index(column) for column in columns.wanted]
        line = before + reader.line_num + 1
        for fields in reader:
            if fields:
                _check_fields(fields, names, f"line {line} of {shown(path)}")
                yield Row(f"line {line}", [fields[each] for each in at])
            line = before + reader.line_num + 1
    except csv.Error as error:
        where = f"line {before + reader.line_num} of {shown(path)}"
        raise LocalError(f"{where} is no CSV: {error}; a quote inside of quotes is written twice") from error


def _fit(head: str, separator: str, columns: Columns) -> tuple[int, int]:
    """How well a separator fits a line of names: how many wanted ones it gives, and how many at all."""
    names = [name.strip() for name in next(csv.reader([head], delimiter=separator), [])]
    return sum(column in names for column in columns.wanted), len(names)


def _check_fields(fields: Sequence[str], names: Sequence[str], where: str) -> None:
    if len(fields) < len(names) or any(fields[len(names) :]) or (len(names) == 1 and len(fields) > 1):
        raise LocalError(
            f"{where} has {len(fields)} fields, and the first line {len(names)} names: what holds a separator, or "
            "several lines, stands in quotes"
        )


# -- parquet --------------------------------------------------------------------------------------------------


def _of_parquet(path: Path, columns: Columns) -> Iterator[Row]:
    reader = extra.parquet()
    try:
        with path.open("rb") as opened, reader.ParquetFile(opened) as file:
            names = file.schema_arrow.names
            for missing in (column for column in columns.wanted if column not in names):
                raise LocalError(f"{shown(path)} has no column {missing!r}, but {_listed(names)}")
            number = 0
            for batch in file.iter_batches(columns=columns.wanted):
                found = [_column(batch.column(each), each, number, path) for each in columns.wanted]
                for values in zip(*found, strict=True):
                    number += 1
                    yield Row(f"row {number}", list(values))
    except OSError as error:
        if error.errno is not None:
            raise LocalError(unreadable(shown(path), error)) from error
        raise LocalError(f"{shown(path)} cannot be read as parquet: {error}; get it again") from error
    except (ValueError, NotImplementedError, KeyError, TypeError) as error:  # what pyarrow's own errors are
        raise LocalError(f"{shown(path)} cannot be read as parquet: {error}") from error


def _column(column: Any, name: str, before: int, path: Path) -> list[Any]:
    """Its values; `before` are the rows of the file before them."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        for number, each in enumerate(column, start=before + 1):
            try:
                each.as_py()
            except UnicodeDecodeError as error:
                where = f"the column {name!r} in row {number} of {shown(path)}"
                raise LocalError(f"{where} is no UTF-8 text: {error.reason} at byte {error.start}") from error
        raise
