"""Reads the rows of tables (JSON, CSV and parquet files) as texts. Each row's text has a name of its own.

So rows are split into training and validation text just like files. A column may name the domain of a row. The domain
comes first in the row's name, so patterns select by it as by folders. Members that download a run's data get the texts,
and need no library for tables.

| suffix | |
|---|---|
| .jsonl .ndjson .json | one object per line, or one array of objects |
| .csv .tsv | a line of names, then rows; separated by commas, semicolons, tabs or bars, whichever fits |
| .parquet | |

All but parquet may be compressed: .gz, .bz2, .xz, .zst. A row whose text is null or empty, or holds a NUL or a lone
surrogate, is left out and counted. Anything else that is not text is an error that names the line. So is a column that
occurs twice, as it is ambiguous.
"""

from __future__ import annotations

import bz2
import csv
import datetime
import decimal
import gzip
import io
import json
import lzma
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from shoal.node.base import extra
from shoal.node.base.textfile import MARKING, checked, encoding_of, parse_json, shown, unreadable
from shoal.node.manifest.data import Columns
from shoal.node.training.data.files import LeftOut
from shoal.protocol.base.errors import LocalError

MAX_NAMES, MAX_NAME = 20, 60  # names of columns in a message, and characters of each
MAX_DOMAIN = 64  # characters of a domain in a row's name
OTHER = "other"  # the domain of rows that name none
NUL = "\0"
SURROGATES = re.compile("[\ud800-\udfff]")  # halves of characters beyond 16 bits; JSON can hold a single one


def text_of(value: Any, column: str, where: str) -> str:
    """The text of a row's column, empty if it is null; LocalError if it is not text. `where` names the row."""
    if value is None or isinstance(value, str):
        return value or ""
    if (text := _decoded(value)) is not None:  # parquet files may hold text as bytes
        return text
    what = f"the column {column!r} in {where} holds {kind(value)}"
    raise LocalError(f"{what}, and no text: name a column of text, or write text there", code="data-unusable")


def why_no_text(text: str, column: str) -> str:
    """Why a row is left out, as a predicate; empty if its text is usable."""
    if not text:
        return f"has no text in {column!r}"
    if NUL in text:
        return "holds a NUL, which no text does"
    return "holds half of a character, which no text does" if SURROGATES.search(text) else ""


def domain_of(value: Any, column: str, where: str) -> str:
    """The domain that a row names, empty if it names none; LocalError if that is neither a word nor a number.

    1.0 is the same domain as 1: pandas writes whole numbers so if some rows have none.
    """
    if isinstance(value, float):
        value = int(value) if value.is_integer() else None if math.isnan(value) else value
    if value is None:
        return ""
    if isinstance(value, str | int | float | decimal.Decimal | datetime.date | datetime.time):
        return str(value)
    if (word := _decoded(value)) is not None:
        return word
    what = f"the column {column!r} in {where} holds {kind(value)}"
    raise LocalError(f"{what}, and no word or number: name a column of those for the domain", code="data-unusable")


def name_of(domain: str) -> str:
    """A domain as one component of a path."""
    return re.sub(r"[^\w.+-]+", "_", domain)[:MAX_DOMAIN].strip(".") or OTHER


def kind(value: Any) -> str:
    """The kind of a value, in words."""
    if isinstance(value, dict):
        return f"an object of {listed(map(repr, value))}"
    kinds: dict[type, str] = {bool: "a truth value", int: "a number", float: "a number", list: "a list", bytes: "bytes"}
    return kinds.get(type(value), f"a {type(value).__name__}")


def listed(names: Iterable[Any]) -> str:
    """Names from a file for a message: the first MAX_NAMES, each cut to MAX_NAME characters."""
    first = [
        name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}..." for name in map(str, islice(names, MAX_NAMES + 1))
    ]
    return ", ".join([*first[:MAX_NAMES], *(["..."] if len(first) > MAX_NAMES else [])]) or "none"


def _decoded(value: Any) -> str | None:
    """The text of bytes that are UTF-8; None for anything else."""
    if not isinstance(value, bytes):
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


JSON, SEPARATED, PARQUET = (".jsonl", ".ndjson", ".json"), (".csv", ".tsv"), (".parquet",)
OPENERS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.GzipFile,
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": lambda path: extra.arrow().CompressedInputStream(path.open("rb"), "zstd"),
}
DAMAGED = (EOFError, zlib.error, lzma.LZMAError)  # of a compressed file; other libraries raise OSErrors without errno
SEPARATORS = {".csv": ",;\t|", ".tsv": "\t,;|"}  # the likeliest first
MAX_FIELD = (1 << 31) - 1  # bytes of a CSV field: fits a C long on every system


class SingleDocument(Exception):
    """A JSON file holds one object that lacks a wanted column, such as settings; so it is not a table."""


class Row(NamedTuple):
    """The values of the wanted columns, and the line or row where they begin."""

    place: str
    values: list[Any]


def is_table(path: Path) -> bool:
    """Whether a file's suffix is that of a table."""
    return _suffix(path) in JSON + SEPARATED + PARQUET


def is_compressed(path: Path) -> bool:
    """Whether a file's suffix is that of a compressed file."""
    return path.suffix.lower() in OPENERS


def rows(name: str, path: Path, columns: Columns, left_out: LeftOut | None = None) -> Iterator[tuple[str, bytes]]:
    """Name and content of each text in a table; rows without text are left out.

    Raises LocalError if the file cannot be read or a row holds something else than text, and SingleDocument, before any
    row, if it is no table.
    """
    noted = left_out if left_out is not None else LeftOut()
    for number, row in enumerate(_rows(path, columns)):
        where = f"{row.place} of {shown(path)}"
        text, *domain = row.values
        text = text_of(text, columns.text, where)
        if reason := why_no_text(text, columns.text):
            noted.rows.add(reason, where)
            continue
        folder = "".join(f"{_folder(each, columns, where, noted)}/" for each in domain)
        yield f"{folder}{name}/{number:09}", text.encode()


def _folder(value: Any, columns: Columns, where: str, noted: LeftOut) -> str:
    """The domain of a row as the first component of its name."""
    called = domain_of(value, columns.domain, where)
    folder = name_of(called)
    if called:
        noted.domains.add(folder, called)
    else:
        noted.nowhere.add(f"names none in {columns.domain!r}", where)
    return folder


def _check_names(names: Sequence[str], path: Path, columns: Columns) -> None:
    """LocalError unless each wanted column occurs exactly once."""
    for column in columns.wanted:
        if column not in names:
            raise LocalError(f"{shown(path)} has no column {column!r}, but {listed(names)}", code="data-unusable")
        if (count := names.count(column)) > 1:
            raise LocalError(
                f"{shown(path)} has {count} columns {column!r}: call the others something else", code="data-unusable"
            )


def _suffix(path: Path) -> str:
    """The suffix that tells the kind of table, without that of compression; parquet is never compressed so."""
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
            raise LocalError(unreadable(shown(path), error), code="unreadable") from error
        raise LocalError(
            f"{shown(path)} is damaged, or was cut short: {error}; get it again", code="data-unusable"
        ) from error


def _open(path: Path) -> io.BufferedReader:
    """The file's bytes, decompressed."""
    file = OPENERS[path.suffix.lower()](path) if is_compressed(path) else path.open("rb", buffering=0)
    return io.BufferedReader(file)


# -- JSON -----------------------------------------------------------------------------------------------------


def _of_json(lines: Iterator[str], path: Path, columns: Columns) -> Iterator[Row]:
    numbered = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    first = next(numbered, None)
    if first is None:
        return

    def whole() -> Any:
        return parse_json("\n" * (first[0] - 1) + first[1] + "".join(lines), shown(path), _each_once(columns))

    if first[1].lstrip().startswith("["):
        for number, row in enumerate(whole(), start=1):
            yield _row(f"row {number}", row, path, columns)
        return
    if _suffix(path) != ".json":
        yield from (_of_line(*each, path, columns) for each in chain([first], numbered))
    elif not _is_json(first[1]) or (second := next(numbered, None)) is None:
        yield _of_document(whole(), path, columns)
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
        raise SingleDocument
    return _row("the object", value, path, columns)


def _of_line(number: int, line: str, path: Path, columns: Columns) -> Row:
    try:
        is_plain = all(line.count(f'"{column}"') < 2 for column in columns.wanted)  # faster: no key can occur twice
        read = json.loads(line, object_pairs_hook=None if is_plain else _each_once(columns))
        return _row(f"line {number}", read, path, columns)
    except (ValueError, RecursionError) as error:
        why = f"{error.msg} at its column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        cut = "" if line.endswith("\n") else "; it is the last line, and has no end: was the file cut short?"
        raise LocalError(
            f"line {number} of {shown(path)} is no JSON object with {columns.words}: {why}{cut}", code="data-unusable"
        ) from error


def _each_once(columns: Columns) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """An `object_pairs_hook` for `json` that raises ValueError if an object has a wanted column twice."""

    def made(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        for column in columns.wanted if len(found) < len(pairs) else ():
            if sum(key == column for key, _ in pairs) > 1:
                raise ValueError(f"an object has the key {column!r} twice")
        return found

    return made


def _row(place: str, row: Any, path: Path, columns: Columns) -> Row:
    if isinstance(row, dict) and all(column in row for column in columns.wanted):
        return Row(place, [row[column] for column in columns.wanted])
    raise LocalError(
        f"{place} of {shown(path)} is no JSON object with {columns.words}, but {kind(row)}", code="data-unusable"
    )


# -- CSV ------------------------------------------------------------------------------------------------------


def _of_separated(lines: Iterator[str], path: Path, columns: Columns) -> Iterator[Row]:
    csv.field_size_limit(MAX_FIELD)
    before, head = next(((number, line) for number, line in enumerate(lines) if line.strip()), (0, ""))
    if not head:
        return
    separators = SEPARATORS[_suffix(path)]
    if said := re.fullmatch(
        r"sep=([^\w\r\n\"])\s*", head, re.IGNORECASE
    ):  # some programs name the separator in a first line
        before, head, separators = before + 1, next(lines, ""), said[1]
    try:
        separator = max(separators, key=lambda each: _fit(head, each, columns))
    except csv.Error as error:
        where = f"line {before + 1} of {shown(path)}"
        raise LocalError(f"{where} is no line of names, as CSV begins with: {error}", code="data-unusable") from error
    reader = csv.reader(chain([head], lines), delimiter=separator, strict=True)
    try:
        names = [name.strip() for name in next(reader, [])]
        _check_names(names, path, columns)
        at = [names.index(column) for column in columns.wanted]
        line = before + reader.line_num + 1
        for fields in reader:
            if fields:
                _check_fields(fields, names, f"line {line} of {shown(path)}")
                yield Row(f"line {line}", [fields[each] for each in at])
            line = before + reader.line_num + 1
    except csv.Error as error:
        where = f"line {before + reader.line_num} of {shown(path)}"
        raise LocalError(
            f"{where} is no CSV: {error}; a quote inside of quotes is written twice", code="data-unusable"
        ) from error


def _fit(head: str, separator: str, columns: Columns) -> tuple[int, int]:
    """Scores a separator on the line of names: how many wanted columns it gives, and how many columns at all."""
    names = [name.strip() for name in next(csv.reader([head], delimiter=separator), [])]
    return sum(column in names for column in columns.wanted), len(names)


def _check_fields(fields: Sequence[str], names: Sequence[str], where: str) -> None:
    if len(fields) < len(names) or any(fields[len(names) :]) or (len(names) == 1 and len(fields) > 1):
        raise LocalError(
            f"{where} has {len(fields)} fields, and the first line {len(names)} names: what holds a separator, or "
            "several lines, stands in quotes",
            code="data-unusable",
        )


# -- parquet --------------------------------------------------------------------------------------------------


def _of_parquet(path: Path, columns: Columns) -> Iterator[Row]:
    reader = extra.parquet()
    try:
        with path.open("rb") as opened, reader.ParquetFile(opened) as file:
            names = file.schema_arrow.names
            _check_names(names, path, columns)
            number = 0
            for batch in file.iter_batches(columns=columns.wanted):
                found = [_column(batch.column(each), each, number, path) for each in columns.wanted]
                for values in zip(*found, strict=True):
                    number += 1
                    yield Row(f"row {number}", list(values))
    except OSError as error:
        if error.errno is not None:
            raise LocalError(unreadable(shown(path), error), code="unreadable") from error
        raise LocalError(
            f"{shown(path)} cannot be read as parquet: {error}; get it again", code="data-unusable"
        ) from error
    except (ValueError, NotImplementedError, KeyError, TypeError) as error:  # base classes of pyarrow's errors
        raise LocalError(f"{shown(path)} cannot be read as parquet: {error}", code="data-unusable") from error


def _column(column: Any, name: str, before: int, path: Path) -> list[Any]:
    """A column's values; `before` is the number of the file's rows before them."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        for number, each in enumerate(column, start=before + 1):
            try:
                each.as_py()
            except UnicodeDecodeError as error:
                where = f"the column {name!r} in row {number} of {shown(path)}"
                raise LocalError(
                    f"{where} is no UTF-8 text: {error.reason} at byte {error.start}", code="not-text"
                ) from error
        raise
