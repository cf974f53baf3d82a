"""The datasets on this node's disk, by their digests, shared by all runs that name them.

    data/<digest>/corpus.shoalpack   the whole stream, whose digest was right
    data/<digest>/corpus.part        the pieces that were downloaded so far; a sparse file
    data/<digest>/index              the hashes of its pieces; used only if the tree's root follows from them

Experts' files (node/experts/library.py) have a store of their own, with another file name and another hash.

Which pieces of a file are there is not recorded: opening a file hashes it. So a crash at any time, a damaged disk and a
file that a person has copied there are handled alike, and cost only the wrong pieces. All calls block: use a thread.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.node.base.atomic import force, replace_file
from shoal.node.base.refusals import CODES
from shoal.node.manifest.data import NO_COLUMNS, Columns
from shoal.node.training.data.files import LeftOut, find
from shoal.node.training.data.pieces import PAGES, PIECE, PIECES, TOP, Blob, Cutter, Index
from shoal.node.training.data.texts import SUFFIX, Text, check_any, file_digest, pack, read_texts, stream_hasher
from shoal.protocol.base.errors import LocalError, Shortage
from shoal.protocol.base.ids import DIGEST_SIZE, Digest
from shoal.protocol.base.shortages import is_temporary

PACKED, PART, INDEX = f"corpus{SUFFIX}", "corpus.part", "index"
HashFile = Callable[[Path], Digest]
NEW_PREFIX = "new-"  # of folders of datasets that are being packed
MIN_FREE = 256 << 20  # bytes of disk that a download leaves free


@dataclass(frozen=True, slots=True)
class Dataset:
    """A complete dataset, with its digest and the hashes of its pieces."""

    digest: Digest
    index: Index
    root: Digest
    path: Path | None  # of the packed file; None: it was only measured, and not packed
    left_out: LeftOut | None = field(default=None, compare=False)  # of the files that it was made from on this machine

    def read(self, blob: Blob) -> bytes | None:
        """The content of an existing blob of its tree; None if the file is damaged or gone.

        Raises OSError if it cannot be read now for want of something temporary, such as open files.
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
        except OSError as error:
            if is_temporary(error):
                raise
            return None
        return content if self.index.is_piece(blob.number, content) else None


class Store:
    """The folder `data` of a home; `name` is the name of complete files, and `hash_file` gives the digest of one."""

    def __init__(self, root: Path, name: str = PACKED, hash_file: HashFile = file_digest) -> None:
        self._root, self._name, self._hash_file = root, name, hash_file

    def folder(self, digest: Digest) -> Path:
        """The folder of a dataset, which need not exist."""
        return self._root / digest.hex()

    def tidy(self) -> None:
        """Removes datasets that a crash has left half packed."""
        for path in self._root.glob(f"{NEW_PREFIX}*"):
            shutil.rmtree(path, ignore_errors=True)

    def has(self, digest: Digest) -> bool:
        """Whether a dataset was complete when it was last verified."""
        return (self.folder(digest) / self._name).exists()

    def open(self, digest: Digest, root: Digest | None) -> Dataset | None:
        """A dataset (with this root if one is given) after it was verified to the last byte; None if it is not here.

        A damaged dataset becomes an unfinished download, in which the wrong pieces are missing.
        """
        folder = self.folder(digest)
        if not self.has(digest):
            return None
        whole = folder / self._name
        index = (load_index(folder, root) if root is not None else None) or rebuild_index(whole)
        if root not in (None, index.root):
            return None
        with _disk_errors(folder):
            if whole.stat().st_size == index.size and self._hash_file(whole) == digest:
                return Dataset(digest, index, index.root, whole)
            whole.replace(folder / PART)
        return None

    def add(self, paths: Sequence[Path], columns: Columns = NO_COLUMNS) -> Dataset:
        """Packs a person's texts; LocalError if there are none, or the disk is full."""
        with self._new_folder() as (new, keep):
            with (new / PACKED).open("wb") as file:
                made = measure(paths, columns, file.write)
                file.flush()
                os.fsync(file.fileno())
            save_index(new, made.index)
            folder = keep(made.digest)
        return replace(made, path=folder / PACKED)

    def take(self, write: Callable[[Path], object]) -> Dataset:
        """Keeps the file that `write` makes at the path that it is given; LocalError if that is impossible."""
        with self._new_folder() as (new, keep):
            write(new / self._name)
            digest, index = self._hash_file(new / self._name), rebuild_index(new / self._name)
            folder = keep(digest)
        return Dataset(digest, index, index.root, folder / self._name)

    @contextmanager
    def _new_folder(self) -> Iterator[tuple[Path, Callable[[Digest], Path]]]:
        """A new folder that is removed at the end, unless it was kept: a call renames it to the folder of a digest."""
        new = self._root / f"{NEW_PREFIX}{secrets.token_hex(8)}"

        def keep(digest: Digest) -> Path:
            folder = self.folder(digest)
            shutil.rmtree(folder, ignore_errors=True)  # the same dataset: complete, damaged or half downloaded
            new.replace(folder)
            force(self._root)
            return folder

        with _disk_errors(self._root):
            new.mkdir(mode=0o700, parents=True)
            try:
                yield new, keep
            finally:
                shutil.rmtree(new, ignore_errors=True)

    def begin(self, digest: Digest, index: Index) -> Download:
        """Begins or resumes the download of a dataset whose index is proved; LocalError if the disk has no room."""
        folder = self.folder(digest)
        with _disk_errors(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            save_index(folder, index)
            return Download(folder, digest, index, self._name, self._hash_file)

    def forget(self, digest: Digest) -> None:
        """Deletes a dataset."""
        shutil.rmtree(self.folder(digest), ignore_errors=True)


class Download:
    """A dataset of which some pieces are missing. Several threads may put pieces at once."""

    def __init__(
        self, folder: Path, digest: Digest, index: Index, name: str = PACKED, hash_file: HashFile = file_digest
    ) -> None:
        self._folder, self._digest, self._index = folder, digest, index
        self._name, self._hash_file = name, hash_file
        self._file = folder / PART
        self.missing = self._find_missing()
        self._check_room()

    def _find_missing(self) -> list[int]:
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
        if self.missing and free < wanted + MIN_FREE:
            raise Shortage(
                f"the run's data need {wanted >> 20} MiB more in {self._folder}, and {free >> 20} MiB are free: "
                "make room, or choose another SHOAL_HOME",
                code="no-room",
            )

    def put(self, number: int, content: bytes) -> None:
        """Stores a piece that was checked."""
        with _disk_errors(self._file), self._file.open("r+b") as file:
            os.pwrite(file.fileno(), content, number * PIECE)

    def finish(self) -> Dataset:
        """The complete dataset, once all pieces have come; LocalError if they do not have the manifest's digest."""
        with _disk_errors(self._file):
            force(self._file)
            if self._hash_file(self._file) != self._digest:
                raise LocalError(
                    "the manifest contradicts itself: its pieces are not those of the data that it names",
                    code="manifest-wrong",
                )
            path = self._file.replace(self._folder / self._name)
            force(self._folder)
        return Dataset(self._digest, self._index, self._index.root, path)


def measure(paths: Sequence[Path], columns: Columns = NO_COLUMNS, write: Callable[[bytes], object] = len) -> Dataset:
    """The digests of a person's texts (of tables, the text in `columns`); `write` gets their packed stream."""
    left_out = LeftOut()
    hasher, cutter, seen = stream_hasher(), Cutter(), _ByteCount()
    for part in pack(seen.pass_on(read_texts(find(paths, left_out), columns, left_out))):
        hasher.update(part)
        cutter.feed(part)
        write(part)
    check_any(seen.bytes, paths, left_out)
    index = cutter.index()
    return Dataset(Digest(hasher.digest()), index, index.root, None, left_out)


@dataclass(slots=True)
class _ByteCount:
    """Counts the bytes of texts that pass through it."""

    bytes: int = 0

    def pass_on(self, texts: Iterable[Text]) -> Iterator[Text]:
        for text in texts:
            self.bytes += len(text.content)
            yield text


def save_index(folder: Path, index: Index) -> None:
    """Writes the index beside the pieces that it is about."""
    replace_file(folder / INDEX, [index.size.to_bytes(8, "little"), index.hashes])


def load_index(folder: Path, root: Digest) -> Index | None:
    """The index in a folder, if it is complete and has this root."""
    with suppress(OSError):  # the caller rebuilds it
        content = (folder / INDEX).read_bytes()
        index = Index(int.from_bytes(content[:8], "little"), content[8:])
        if len(index.hashes) == index.shape.pieces * DIGEST_SIZE and index.root == root:
            return index
    return None


def rebuild_index(whole: Path) -> Index:
    """Makes the index of a complete file, and writes it beside the file."""
    cutter = Cutter()
    with _disk_errors(whole.parent), whole.open("rb") as file:
        for part in iter(lambda: file.read(PIECE), b""):
            cutter.feed(part)
        save_index(whole.parent, index := cutter.index())
    return index


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Turns OSErrors into LocalErrors that name the path."""
    try:
        yield
    except OSError as error:
        raise LocalError(
            f"cannot keep data in {path}: {error.strerror or error}", code=CODES.get(error.errno or 0, "unwritable")
        ) from error
