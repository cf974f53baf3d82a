"""Which of a person's files are text, and in which order a dataset holds them.

A file is text if it is UTF-8, or has the byte order mark of another Unicode, and holds no NUL; a dataset has it as
UTF-8 without the mark. Others below a folder are left out, and named; one that was named by itself is an error. Texts
are ordered by relative path, those of one path by content, whatever the order on disk; one file is in memory at a time,
unless several have one path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from shoal.node.dataset.columns import NO_COLUMNS, Columns
from shoal.node.dataset.folders import Found
from shoal.node.dataset.left_out import LeftOut
from shoal.node.dataset.tables import Document, is_compressed, is_table, rows
from shoal.node.textfile import AS_UTF8, encoding_of, shown, unreadable
from shoal.protocol.errors import LocalError

END_OF_TEXT = b"\0"


@dataclass(frozen=True, slots=True)
class Text:
    """One file: its path relative to the folder it was found in, with forward slashes, and its bytes."""

    name: str
    content: bytes


def read_texts(
    found: Iterable[Found], columns: Columns = NO_COLUMNS, left_out: LeftOut | None = None
) -> Iterator[Text]:
    """Those of the files that are text, in the dataset's order; where `columns` are named, tables row by row.

    LocalError if a file cannot be read, or a table is none.
    """
    noted = left_out if left_out is not None else LeftOut()
    for _, same_name in groupby(sorted(found, key=_name), key=_name):
        several = list(same_name)
        if len(several) == 1:
            yield from _read(several[0], columns, noted)  # rows are in memory one at a time
            continue
        texts = [text for each in several for text in _read(each, columns, noted)]
        yield from sorted(texts, key=lambda text: (text.name, text.content))


def check_any(total: int, paths: Sequence[Path], left_out: LeftOut) -> None:
    """LocalError if the texts among `paths` have no byte in all."""
    if not total:
        why = "; ".join(left_out.words()) or "all files are empty, or there are none"
        raise LocalError(f"no text in {', '.join(map(shown, paths)) or 'the data'}: {why}")


def _read(file: Found, columns: Columns, left_out: LeftOut) -> Iterator[Text]:
    if columns and is_table(file.path):
        try:
            yield from _rows(file, columns, left_out)
            return
        except Document:
            left_out.whole.add(f"read whole, being one JSON object without {columns.words}", shown(file.path))
    content = _content(file.path)
    try:
        yield Text(file.name, in_utf8(content, file.path))
    except NoText as error:
        if file.is_named:
            raise LocalError(f"{shown(file.path)} {error.reason}{error.where}: name texts with --data") from error
        left_out.files.add(error.reason, f"{shown(file.path)}{error.where}")


def _rows(file: Found, columns: Columns, left_out: LeftOut) -> Iterator[Text]:
    is_empty = True
    for name, content in rows(file.name, file.path, columns, left_out):
        is_empty = False
        yield Text(name, content)
    if is_empty:
        left_out.files.add(f"has no row with text in {columns.words}", shown(file.path))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise LocalError(unreadable(shown(path), error)) from error


class NoText(Exception):
    """Why a file is no text, as a predicate, and where that is seen."""

    def __init__(self, reason: str, where: str = "") -> None:
        super().__init__(reason)
        self.reason, self.where = reason, where


def in_utf8(content: bytes, path: Path) -> bytes:
    """A file as text, without its byte order mark; NoText if it is none."""
    if is_compressed(path):
        raise NoText("is compressed, and must be unpacked first")
    encoding = encoding_of(content)
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content[: error.start].decode(encoding, "ignore").count("\n") + 1
        raise NoText(f"is no UTF-8 text ({AS_UTF8})", f", line {line}, byte 0x{content[error.start]:02x}") from error
    if "\0" in text:
        raise NoText("holds a NUL, which no text does", f", line {text.count(chr(10), 0, text.index(chr(0))) + 1}")
    return content if encoding == "utf-8" else text.encode()


def _name(each: Found) -> str:
    return each.name
