"""Chunks of the state on disk while they are downloaded, so that a daemon that dies needs not fetch them again.

One file, to which each chunk is appended: its hash, its length, its bytes. What a crash has left is read once, and
only chunks whose bytes still have their hash count; what follows a torn one is overwritten. The file saves a download's
time and no more, so nothing is forced to disk, and where it cannot be written the download goes on without.
"""

from __future__ import annotations

import logging
import os
import shutil
import struct
from contextlib import suppress
from pathlib import Path

from shoal.protocol.base.ids import DIGEST_SIZE, Digest, content_hash
from shoal.protocol.base.shortages import in_words

HEAD = struct.Struct(f">{DIGEST_SIZE}sI")
LARGEST = 1 << 30  # bytes; no chunk has more
SPARE = 2  # times a state's size must be free on the disk: others need room as well

log = logging.getLogger("shoal.run")


class ChunkFile:
    """The chunks in one file, of which nothing is known before `read`. All methods block, except for `has`.

    Whoever calls them has one thread do so.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[Digest, tuple[int, int]] = {}  # offset and length of each chunk's bytes
        self._end = 0
        self._descriptor: int | None = None
        self._is_given_up = False

    def read(self) -> ChunkFile:
        """Find what a crash has left, most often nothing; returns itself."""
        with suppress(OSError), self._path.open("rb") as file:
            while len(head := file.read(HEAD.size)) == HEAD.size:
                chunk, length = HEAD.unpack(head)
                if length > LARGEST or len(payload := file.read(length)) < length or content_hash(payload) != chunk:
                    break
                self._places[Digest(chunk)] = self._end + HEAD.size, length
                self._end += HEAD.size + length
        return self

    def has(self, chunk: Digest) -> bool:
        """Whether the chunk of this hash is here."""
        return chunk in self._places

    def load(self, chunk: Digest, into: memoryview) -> None:
        """Copy the bytes of a chunk that is here; what is copied must be hashed, as a disk may fail."""
        offset, length = self._places[chunk]
        with suppress(OSError, ValueError):  # the disk fails, or has less
            into[:] = os.pread(self._open(), length, offset)

    def begin(self, size: int) -> None:
        """A state of so many bytes is about to be downloaded."""
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._is_given_up = shutil.disk_usage(self._path.parent).free < SPARE * size

    def append(self, chunk: Digest, payload: memoryview) -> None:
        """Add a chunk, unless there is no room."""
        if self._is_given_up or chunk in self._places:
            return
        try:
            descriptor, head = self._open(), HEAD.pack(chunk, len(payload))
            if os.pwritev(descriptor, [head, payload], self._end) != len(head) + len(payload):
                return  # the next one overwrites it
        except OSError as error:
            log.info("chunks of the state are not kept on disk: %s", in_words(error))
            self._is_given_up = True
            return
        self._places[chunk] = self._end + len(head), len(payload)
        self._end += len(head) + len(payload)

    def remove(self) -> None:
        """None of it is needed any more."""
        self._places, self._end = {}, 0
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        with suppress(OSError):
            self._path.unlink()

    def _open(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._descriptor
