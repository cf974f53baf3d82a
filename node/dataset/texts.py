"""Which of a person's files are text, and in which order a dataset holds them.

A file that is not UTF-8 or holds a NUL is no text. Texts are ordered by relative path, those of one path by content,
whatever the order on disk; one file is in memory at a time, unless several have one path.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from shoal.node.dataset.columns import NO_COLUMNS, Columns
from shoal.node.dataset.tables import is_table, rows
from shoal.protocol.errors import LocalError

END_OF_TEXT = b"\0"


@dataclass(frozen=True, slots=True)
class Text:
    """One file: its path relative to the folder it was found in, with forward slashes, and its bytes."""

    name: str
    content: bytes


def find(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    """Relative name and path of each file among `paths`, and below the folders among them."""
    return [each for path in paths for each in walk(path)]


def walk(path: Path) -> Iterator[tuple[str, Path]]:
    """Relative name and path of each regular, unhidden file below a folder, or of the one file itself."""
    if path.is_file():
        yield path.name, path
        return
    if not path.is_dir():
        raise LocalError(f"{path} is neither a file nor a folder")
    for folder, below, files in os.walk(path):
        below[:] = [name for name in below if not name.startswith(".")]
        for name in files:
            file = Path(folder, name)
            if not name.startswith(".") and file.is_file():
                yield file.relative_to(path).as_posix(), file


def read_texts(found: Iterable[tuple[str, Path]], columns: Columns = NO_COLUMNS) -> Iterator[Text]:
    """Those of the files that are text, in the dataset's order; where `columns` are named, tables row by row."""
    for _, same_name in groupby(sorted(found, key=_name), key=_name):
        several = list(same_name)
        if columns and len(several) == 1 and is_table(several[0][1]):
            yield from _rows(*several[0], columns)  # one at a time
            continue
        texts = [text for each in several for text in _read(*each, columns)]
        yield from sorted(texts, key=lambda text: (text.name, text.content))


def _read(name: str, path: Path, columns: Columns) -> Iterable[Text]:
    if columns and is_table(path):
        return _rows(name, path, columns)
    text = read_text(name, path)
    return () if text is None else (text,)


def check_any(total: int, paths: Sequence[Path], skipped: int) -> None:
    """LocalError if the texts among `paths` have no byte in all."""
    if not total:
        raise LocalError(f"no text in {', '.join(map(str, paths)) or 'the data'}: {skipped} files are not text")


def read_text(name: str, path: Path) -> Text | None:
    """The file, None if it is not text; LocalError if it cannot be read."""
    try:
        content = path.read_bytes()
        content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    except OSError as error:
        raise LocalError(f"cannot read {path}: {error}") from error
    return None if END_OF_TEXT in content else Text(name, content)


def _rows(name: str, path: Path, columns: Columns) -> Iterator[Text]:
    return (Text(row, content) for row, content in rows(name, path, columns) if END_OF_TEXT not in content)


def _name(each: tuple[str, Path]) -> str:
    return each[0]
