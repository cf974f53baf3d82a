"""The datasets on this node's disk, by their digests, shared by all runs that name them.

    data/<digest>/corpus.shoalpack   the whole stream; there only once its digest was right
    data/<digest>/corpus.part        as much of it as has come; a sparse file
    data/<digest>/index              the hashes of its pieces; believed only if the tree's root follows from them

Experts' files (node/experts/library.py) lie in a store of their own, in which the whole file has another name, and is
hashed otherwise.

Which pieces of a file are there is not recorded: opening a file hashes it. So a crash at any time, a damaged disk and a
file that somebody has copied there are handled alike, and cost only the wrong pieces. All of it blocks: call it in a
thread.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.node.base.disk import force, replace_file
from shoal.node.manifest.data import NO_COLUMNS, Columns
from shoal.node.training.data.files import LeftOut, find
from shoal.node.training.data.pieces import PAGES, PIECE, PIECES, TOP, Blob, Cutter, Index
from shoal.node.training.data.texts import SUFFIX, Text, check_any, file_digest, pack, read_texts, stream_hasher
from shoal.protocol.base.errors import LocalError, Shortage
from shoal.protocol.base.ids import DIGEST_SIZE, Digest
from shoal.protocol.base.shortages import is_temporary

PACKED, PART, INDEX = f"corpus{SUFFIX}", "corpus.part", "index"
Hashed = Callable[[Path], Digest]
FRESH = "new-"  # folders of datasets that are being packed
SPARE = 256 << 20  # bytes of disk that a download leaves free


@dataclass(frozen=True, slots=True)
class Dataset:
    """One that is whole, and how it is named."""

    digest: Digest
    index: Index
    root: Digest
    path: Path | None  # of the packed file; None: it was only measured
    left_out: LeftOut | None = field(default=None, compare=False)  # of a person's files, where it was made of these

    def read(self, blob: Blob) -> bytes | None:
        """What lies at a place of its tree that there is; None if the file has become damaged, or is gone.

        OSError if it cannot be read now, for want of something that there will be again.
        """
        if blob.level == TOP:
            return self.index.top
        if blob.level == PAGES:
            return self.index.page(blob.number)
        assert blob.level == PIECES
        assert self.path is not None
        try:
            with self.path.open("rb") as file:
                content = os.pread(file.fileno(), PIECE, blob.number * PIECE)
        except OSError as error:  # a stranger asks, and need not know where our home is
            if is_temporary(error):
                raise
            return None
        return content if self.index.is_piece(blob.number, content) else None


class Store:
    """The folder `data` of a home; `name` is that of whole files, `hashed` gives the digest of one."""

    def __init__(self, root: Path, name: str = PACKED, hashed: Hashed = file_digest) -> None:
        self._root, self._name, self._hashed = root, name, hashed

    def folder(self, digest: Digest) -> Path:
        """Where a dataset is, or would be."""
        return self._root / digest.hex()

    def tidy(self) -> None:
        """Remove what a crash has left half packed."""
        for path in self._root.glob(f"{FRESH}*"):
            shutil.rmtree(path, ignore_errors=True)

    def has(self, digest: Digest) -> bool:
        """Whether a dataset was whole when last looked at."""
        return (self.folder(digest) / self._name).exists()

    def open(self, digest: Digest, root: Digest | None) -> Dataset | None:
        """A dataset, of that root if one is named, read to the last byte; if it is damaged, some pieces are missing."""
        folder = self.folder(digest)
        if not self.has(digest):
            return None
        whole = folder / self._name
        index = (load_index(folder, root) if root is not None else None) or index_again(whole)
        if root not in (None, index.root):
            return None
        with _named(folder):
            if whole.stat().st_size == index.size and self._hashed(whole) == digest:
                return Dataset(digest, index, index.root, whole)
            whole.replace(folder / PART)
        return None

    def add(self, paths: Sequence[Path], columns: Columns = NO_COLUMNS) -> Dataset:
        """Pack a person's texts; LocalError if there are none, or the disk is full."""
        fresh = self._root / f"{FRESH}{secrets.token_hex(8)}"
        with _named(self._root):
            fresh.mkdir(mode=0o700, parents=True)
            try:
                with (fresh / PACKED).open("wb") as file:
                    made = measure(paths, columns, file.write)
                    file.flush()
                    os.fsync(file.fileno())
                save_index(fresh, made.index)
                folder = self.folder(made.digest)
                shutil.rmtree(folder, ignore_errors=True)  # of the same text: whole, damaged, or on its way
                fresh.replace(folder)
                force(self._root)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
        return replace(made, path=folder / PACKED)

    def take(self, write: Callable[[Path], object]) -> Dataset:
        """Keep the file that `write` makes, on disk, at the path that it is given; LocalError if that is impossible."""
        fresh = self._root / f"{FRESH}{secrets.token_hex(8)}"
        with _named(self._root):
            fresh.mkdir(mode=0o700, parents=True)
            try:
                write(fresh / self._name)
                digest, index = self._hashed(fresh / self._name), index_again(fresh / self._name)
                folder = self.folder(digest)
                shutil.rmtree(folder, ignore_errors=True)
                fresh.replace(folder)
                force(self._root)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
        return Dataset(digest, index, index.root, folder / self._name)

    def begin(self, digest: Digest, index: Index) -> Download:
        """Get a dataset whose index is proved, or go on with it; LocalError if the disk has no room for the rest."""
        folder = self.folder(digest)
        with _named(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            save_index(folder, index)
            return Download(folder, digest, index, self._name, self._hashed)

    def forget(self, digest: Digest) -> None:
        """Free its disk space."""
        shutil.rmtree(self.folder(digest), ignore_errors=True)


class Download:
    """A dataset of which some pieces are missing. Pieces may be put by several threads at once."""

    def __init__(
        self, folder: Path, digest: Digest, index: Index, name: str = PACKED, hashed: Hashed = file_digest
    ) -> None:
        self._folder, self._digest, self._index = folder, digest, index
        self._name, self._hashed = name, hashed
        self._file = folder / PART
        self.missing = self._look()
        self._check_room()

    def _look(self) -> list[int]:
        is_new = not self._file.exists()
        with self._file.open("ab") as file:
            file.truncate(self._index.size)
        if is_new:
            return list(range(self._index.shape.pieces))
        with self._file.open("rb") as file:
            contents = iter(lambda: file.read(PIECE), b"")
            return [number for number, each in enumerate(contents) if not self._index.is_piece(number, each)]

    def _check_room(self) -> None:
        wanted, free = len(self.missing) * PIECE, shutil.disk_usage(self._folder).free
        if self.missing and free < wanted + SPARE:
            raise Shortage(
                f"the run's data need {wanted >> 20} MiB more in {self._folder}, and {free >> 20} MiB are free: "
                "make room, or choose another SHOAL_HOME"
            )

    def put(self, number: int, content: bytes) -> None:
        """A piece that was checked has come."""
        with _named(self._file), self._file.open("r+b") as file:
            os.pwrite(file.fileno(), content, number * PIECE)

    def finish(self) -> Dataset:
        """All pieces have come; LocalError if they are not what the manifest's digest names."""
        with _named(self._file):
            force(self._file)
            if self._hashed(self._file) != self._digest:
                raise LocalError("the manifest contradicts itself: its pieces are not those of the data that it names")
            path = self._file.replace(self._folder / self._name)
            force(self._folder)
        return Dataset(self._digest, self._index, self._index.root, path)


def measure(paths: Sequence[Path], columns: Columns = NO_COLUMNS, write: Callable[[bytes], object] = len) -> Dataset:
    """The name of a person's texts, and of those in `columns` of tables; their stream goes to `write` on the way."""
    left_out = LeftOut()
    hasher, cutter, seen = stream_hasher(), Cutter(), _Seen()
    for part in pack(seen.pass_on(read_texts(find(paths, left_out), columns, left_out))):
        hasher.update(part)
        cutter.feed(part)
        write(part)
    check_any(seen.bytes, paths, left_out)
    index = cutter.index()
    return Dataset(Digest(hasher.digest()), index, index.root, None, left_out)


@dataclass(slots=True)
class _Seen:
    """Counts the bytes of texts that pass."""

    bytes: int = 0

    def pass_on(self, texts: Iterable[Text]) -> Iterator[Text]:
        for text in texts:
            self.bytes += len(text.content)
            yield text


def save_index(folder: Path, index: Index) -> None:
    """Beside the pieces that it is about."""
    replace_file(folder / INDEX, [index.size.to_bytes(8, "little"), index.hashes])


def load_index(folder: Path, root: Digest) -> Index | None:
    """The index in a folder, if it is whole and that of `root`."""
    with suppress(OSError):  # then it is made again
        content = (folder / INDEX).read_bytes()
        index = Index(int.from_bytes(content[:8], "little"), content[8:])
        if len(index.hashes) == index.shape.pieces * DIGEST_SIZE and index.root == root:  # damaged, it has any size
            return index
    return None


def index_again(whole: Path) -> Index:
    """The index of a whole file, made again and kept beside it."""
    cutter = Cutter()
    with _named(whole.parent), whole.open("rb") as file:
        for part in iter(lambda: file.read(PIECE), b""):
            cutter.feed(part)
        save_index(whole.parent, index := cutter.index())
    return index


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """The disk's failures, in words."""
    try:
        yield
    except OSError as error:
        raise LocalError(f"cannot keep data in {path}: {error.strerror or error}") from error
