"""The texts of a dataset: reading them from a person's files, and packing them into one stream of bytes and back.

Files. A file is text if it is UTF-8, or has the byte order mark of another Unicode encoding, and holds no NUL; in a
dataset it is UTF-8 without the mark. Other files below a folder are left out and reported; one that was named by itself
is an error. Texts are ordered by relative path, those of the same path by content, whatever their order on disk. One
file is in memory at a time, unless several have the same path.

Packed stream. It holds path and content of each text, each after its length in 8 bytes. `digest("corpus", ...)` hashes
the same bytes, so a dataset's digest is the hash of its packed file. A path in the stream is only a name: it decides
what is held out, and never where anything is written. The file may come from other peers, so any bytes either give
texts or a LocalError.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from blake3 import blake3

from shoal.node.base.textfile import AS_UTF8, encoding_of, shown, unreadable
from shoal.node.manifest.data import NO_COLUMNS, Columns
from shoal.node.training.data.files import DataFile, LeftOut
from shoal.node.training.data.tables import SingleDocument, is_compressed, is_table, rows
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import Digest

END_OF_TEXT = b"\0"


@dataclass(frozen=True, slots=True)
class Text:
    """One file: its path relative to the folder it was found in, with forward slashes, and its bytes."""

    name: str
    content: bytes


def read_texts(
    found: Iterable[DataFile], columns: Columns = NO_COLUMNS, left_out: LeftOut | None = None
) -> Iterator[Text]:
    """The texts of these files, in the dataset's order; if `columns` are named, each row of a table is a text.

    Raises LocalError if a file cannot be read, or a table is invalid.
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
    """LocalError if the texts among `paths` have no bytes in total."""
    if not total:
        why = "; ".join(left_out.words()) or "all files are empty, or there are none"
        raise LocalError(f"no text in {', '.join(map(shown, paths)) or 'the data'}: {why}", code="data-empty")


def _read(file: DataFile, columns: Columns, left_out: LeftOut) -> Iterator[Text]:
    if columns and is_table(file.path):
        try:
            yield from _rows(file, columns, left_out)
            return
        except SingleDocument:
            left_out.whole.add(f"read whole, being one JSON object without {columns.words}", shown(file.path))
    content = _content(file.path)
    try:
        yield Text(file.name, to_utf8(content, file.path))
    except NotText as error:
        if file.is_named:
            raise LocalError(
                f"{shown(file.path)} {error.reason}{error.where}: name texts with --data", code="not-text"
            ) from error
        left_out.files.add(error.reason, f"{shown(file.path)}{error.where}")


def _rows(file: DataFile, columns: Columns, left_out: LeftOut) -> Iterator[Text]:
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
        raise LocalError(unreadable(shown(path), error), code="unreadable") from error


class NotText(Exception):
    """A file is not text: the reason, as a predicate such as "holds a NUL", and where in the file."""

    def __init__(self, reason: str, where: str = "") -> None:
        super().__init__(reason)
        self.reason, self.where = reason, where


def to_utf8(content: bytes, path: Path) -> bytes:
    """A file's text as UTF-8 without a byte order mark; NotText if it is not text."""
    if is_compressed(path):
        raise NotText("is compressed, and must be unpacked first")
    encoding = encoding_of(content)
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content[: error.start].decode(encoding, "ignore").count("\n") + 1
        raise NotText(f"is no UTF-8 text ({AS_UTF8})", f", line {line}, byte 0x{content[error.start]:02x}") from error
    if "\0" in text:
        raise NotText("holds a NUL, which no text does", f", line {text.count(chr(10), 0, text.index(chr(0))) + 1}")
    return content if encoding == "utf-8" else text.encode()


def _name(each: DataFile) -> str:
    return each.name


SUFFIX = ".shoalpack"
MAX_TEXTS = 1 << 22  # each takes about a hundred bytes of memory, however short it is
LENGTH = 8  # bytes


def pack(texts: Iterable[Text]) -> Iterator[bytes]:
    """The parts of the packed stream of these texts; LocalError if there are too many texts."""
    for count, text in enumerate(texts):
        _check_count(count + 1)
        for part in (encode_name(text.name), text.content):
            yield len(part).to_bytes(LENGTH, "little")
            yield part


def unpack(stream: memoryview) -> Iterator[Text]:
    """The texts of a packed stream; LocalError, at the latest when all are read, if it is invalid."""
    position, count = 0, 0
    while position < len(stream):
        _check_count(count := count + 1)
        name, position = _part(stream, position)
        content, position = _part(stream, position)
        yield Text(bytes(name).decode("utf-8", "surrogateescape"), bytes(content))


def read_pack(path: Path) -> list[Text]:
    """All texts of a packed file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LocalError(unreadable(shown(path), error), code="unreadable") from error
    try:
        return list(unpack(memoryview(content)))
    except LocalError as error:
        raise LocalError(f"{shown(path)}: {error}", code="data-unusable") from error


def is_pack(path: Path) -> bool:
    """Whether a path has the suffix of packed files."""
    return path.suffix == SUFFIX


def encode_name(name: str) -> bytes:
    """A relative path as bytes, also if it is not valid UTF-8."""
    return name.encode("utf-8", "surrogateescape")


def stream_hasher() -> Any:
    """A hasher that gives a dataset's digest when it is fed with its packed stream."""
    return blake3(derive_key_context="shoal v1 corpus", max_threads=blake3.AUTO)


def file_digest(path: Path) -> Digest:
    """The dataset's digest, from its packed file."""
    return Digest(stream_hasher().update_mmap(path).digest())


def _part(stream: memoryview, position: int) -> tuple[memoryview, int]:
    start = position + LENGTH
    stop = start + int.from_bytes(stream[position:start], "little")
    if not start <= stop <= len(stream):
        raise LocalError(
            "the run's data are not a packed dataset: the manifest's author has named something else",
            code="data-unusable",
        )
    return stream[start:stop], stop


def _check_count(count: int) -> None:
    if count > MAX_TEXTS:
        raise LocalError(f"the data are more than {MAX_TEXTS:,} texts: join some of the files", code="data-too-large")
