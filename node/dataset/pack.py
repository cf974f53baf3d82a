"""A dataset as one stream of bytes: of each text its path and its content, each behind its length in 8 bytes.

That is the very stream which `digest("corpus", ...)` hashes, so a dataset's name is the hash of its packed file. A
path in it is only ever read as a name: it decides what is held out, and never where anything is written. The file may
come from strangers, so reading it is total: anything that is not such a stream is a LocalError.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from blake3 import blake3

from shoal.node.dataset.texts import Text
from shoal.node.textfile import shown, unreadable
from shoal.protocol.errors import LocalError
from shoal.protocol.ids import Digest

SUFFIX = ".shoalpack"
MAX_TEXTS = 1 << 22  # each costs its reader some hundred bytes, however short it is
LENGTH = 8


def pack(texts: Iterable[Text]) -> Iterator[bytes]:
    """The stream, in parts; LocalError if there are too many texts."""
    for count, text in enumerate(texts):
        _check_count(count + 1)
        for part in (encode_name(text.name), text.content):
            yield len(part).to_bytes(LENGTH, "little")
            yield part


def unpack(stream: memoryview) -> Iterator[Text]:
    """The texts of a stream; LocalError, at the latest when all are read, if it is none."""
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
        raise LocalError(unreadable(shown(path), error)) from error
    try:
        return list(unpack(memoryview(content)))
    except LocalError as error:
        raise LocalError(f"{shown(path)}: {error}") from error


def is_pack(path: Path) -> bool:
    """Whether a path is that of a packed file."""
    return path.suffix == SUFFIX


def encode_name(name: str) -> bytes:
    """A relative path as bytes; any that a file system has."""
    return name.encode("utf-8", "surrogateescape")


def stream_hasher() -> Any:
    """Fed with the stream, it knows the dataset's digest."""
    return blake3(derive_key_context="shoal v1 corpus", max_threads=blake3.AUTO)


def file_digest(path: Path) -> Digest:
    """The digest of a packed file."""
    return Digest(stream_hasher().update_mmap(path).digest())


def _part(stream: memoryview, position: int) -> tuple[memoryview, int]:
    start = position + LENGTH
    stop = start + int.from_bytes(stream[position:start], "little")
    if not start <= stop <= len(stream):
        raise LocalError("the run's data are not a packed dataset: the manifest's author has named something else")
    return stream[start:stop], stop


def _check_count(count: int) -> None:
    if count > MAX_TEXTS:
        raise LocalError(f"the data are more than {MAX_TEXTS:,} texts: join some of the files")
