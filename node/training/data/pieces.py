"""The tree of hashes over a dataset's stream, which is cut into pieces.

    root  =  hash of (size, top)                    in the manifest
    top   =  the hashes of all pages, one after the other
    page  =  the hashes of 4096 pieces              128 KiB for 1 GiB of data
    piece =  256 KiB of the stream                  the last one may be shorter

Tops, pages and pieces are called blobs. The hash of each blob is known before it is requested, so only the manifest is
trusted, and a wrong blob is recognised at once. The length of each blob follows from the dataset's size. There is no
I/O here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from shoal.protocol.base.ids import DIGEST_SIZE, Digest, content_hash, digest

PIECE = 256 << 10  # bytes; so small that a ping which is queued behind a piece is not late
FANOUT = 4096  # pieces per page
PIECES, PAGES, TOP = range(3)  # levels


class Blob(NamedTuple):
    """The place of a blob in the tree."""

    level: int
    number: int


TOP_BLOB = Blob(TOP, 0)


@dataclass(frozen=True, slots=True)
class TreeShape:
    """How many pieces and pages a dataset of `size` bytes has, and how long each blob is."""

    size: int

    @property
    def pieces(self) -> int:
        return -(-self.size // PIECE)

    @property
    def pages(self) -> int:
        return -(-self.pieces // FANOUT)

    def length(self, blob: Blob) -> int:
        """Bytes of a blob; 0 if there is none at that place."""
        if blob.level == TOP:
            return self.pages * DIGEST_SIZE if blob.number == 0 else 0
        if blob.level == PAGES:
            return DIGEST_SIZE * _part(self.pieces, FANOUT, blob.number)
        return _part(self.size, PIECE, blob.number) if blob.level == PIECES else 0


def _part(whole: int, step: int, number: int) -> int:
    """Length of part `number` of `whole`, if all parts but the last have length `step`; 0 beyond the end."""
    return max(0, min(step, whole - number * step))


def root_of(size: int, top: bytes) -> Digest:
    """The root of the tree, which a manifest names."""
    return digest("dataset pieces", size.to_bytes(8, "little"), top)


@dataclass(frozen=True, slots=True)
class Index:
    """The hashes of all pieces of a dataset of `size` bytes."""

    size: int
    hashes: bytes

    @property
    def shape(self) -> TreeShape:
        return TreeShape(self.size)

    @property
    def top(self) -> bytes:
        return b"".join(content_hash(self.page(number)) for number in range(self.shape.pages))

    @property
    def root(self) -> Digest:
        return root_of(self.size, self.top)

    def page(self, number: int) -> bytes:
        """The hashes of the pieces of a page."""
        step = FANOUT * DIGEST_SIZE
        return self.hashes[number * step : (number + 1) * step]

    def is_piece(self, number: int, content: bytes) -> bool:
        """Whether `content` has the length and the hash of that piece."""
        named = self.hashes[number * DIGEST_SIZE : (number + 1) * DIGEST_SIZE]
        return len(content) == self.shape.length(Blob(PIECES, number)) and content_hash(content) == named


class Tree:
    """The verified part of a dataset's tree. It grows from the root: the top first, then the pages, then any piece."""

    def __init__(self, root: Digest, size: int) -> None:
        self.shape = TreeShape(size)
        self._root = root
        self._top = b""
        self._pages: dict[int, bytes] = {}

    def accepts(self, blob: Blob, content: bytes) -> bool:
        """Whether `content` is proved to be that blob; if so, a top or a page is remembered."""
        if len(content) != self.shape.length(blob):
            return False
        if blob.level == TOP:
            proved = root_of(self.shape.size, content) == self._root
            self._top = content if proved else self._top
        elif blob.level == PAGES:
            proved = content_hash(content) == _slot(self._top, blob.number)
            if proved:
                self._pages[blob.number] = content
        else:
            page, place = divmod(blob.number, FANOUT)
            proved = content_hash(content) == _slot(self._pages.get(page, b""), place)
        return proved

    def index(self) -> Index | None:
        """The hashes of all pieces, once all pages are known."""
        if not self._top or len(self._pages) < self.shape.pages:
            return None
        return Index(self.shape.size, b"".join(self._pages[number] for number in range(self.shape.pages)))


def _slot(hashes: bytes, number: int) -> bytes:
    return hashes[number * DIGEST_SIZE : (number + 1) * DIGEST_SIZE]


class Cutter:
    """Cuts a stream into pieces as it comes, and collects their hashes."""

    def __init__(self) -> None:
        self.size = 0
        self._hashes = bytearray()
        self._rest = bytearray()

    def feed(self, part: bytes) -> None:
        """Adds the next bytes of the stream."""
        self.size += len(part)
        view = memoryview(part)
        while len(self._rest) + len(view) >= PIECE:
            room = PIECE - len(self._rest)
            self._rest += view[:room]
            view = view[room:]
            self._cut()
        self._rest += view

    def index(self) -> Index:
        """Ends the stream, and returns its index."""
        if self._rest:
            self._cut()
        return Index(self.size, bytes(self._hashes))

    def _cut(self) -> None:
        self._hashes += content_hash(bytes(self._rest))
        self._rest.clear()
