"""The tree above a dataset's pieces: every blob is known by its hash, and every size follows from the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.training.data import pieces as module
from shoal.node.training.data.pieces import PAGES, PIECES, TOP, TOP_BLOB, Blob, Cutter, Index, Tree, TreeShape
from shoal.protocol.base.ids import DIGEST_SIZE


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of 8 bytes, pages of 3."""
    monkeypatch.setattr(module, "PIECE", 8)
    monkeypatch.setattr(module, "FANOUT", 3)


def indexed(stream: bytes, step: int = 5) -> Index:
    cutter = Cutter()
    for start in range(0, len(stream), step):
        cutter.feed(stream[start : start + step])
    return cutter.index()


STREAM = bytes(range(100))  # thirteen pieces on five pages; the last one has four bytes


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("step", [1, 5, 8, 64, 1000])
def test_pieces_do_not_depend_on_how_the_stream_comes(step: int) -> None:
    index = indexed(STREAM, step)
    assert (index.size, index.shape.pieces, index.shape.pages) == (100, 13, 5)
    assert all(index.is_piece(number, STREAM[8 * number : 8 * number + 8]) for number in range(13))
    assert not index.is_piece(0, STREAM[8:16])
    assert index.root == indexed(STREAM).root


@pytest.mark.usefixtures("_small")
def test_a_tree_takes_what_is_proved_from_the_top_down() -> None:
    index = indexed(STREAM)
    tree = Tree(index.root, index.size)
    assert not tree.accepts(Blob(PIECES, 0), STREAM[:8])  # its page is not known yet
    assert not tree.accepts(Blob(PAGES, 0), index.page(0))
    assert tree.accepts(TOP_BLOB, index.top)
    for number in range(5):
        assert tree.index() is None
        assert tree.accepts(Blob(PAGES, number), index.page(number))
    assert tree.index() == index
    assert tree.accepts(Blob(PIECES, 12), STREAM[96:])


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("blob", [TOP_BLOB, Blob(PAGES, 1), Blob(PIECES, 4), Blob(PIECES, 12)])
def test_a_tree_takes_nothing_else(blob: Blob) -> None:
    index = indexed(STREAM)
    tree = Tree(index.root, index.size)
    right = {TOP_BLOB: index.top, Blob(PAGES, 1): index.page(1), Blob(PIECES, 4): STREAM[32:40]}
    content = right.get(blob, STREAM[96:])
    wrong = [b"", content[:-1], content + b"\0", content[::-1], bytes([content[0] ^ 1]) + content[1:]]
    if blob != TOP_BLOB:
        assert tree.accepts(TOP_BLOB, index.top)
    if blob.level == PIECES:
        assert all(tree.accepts(Blob(PAGES, number), index.page(number)) for number in range(5))
    assert not any(tree.accepts(blob, each) for each in wrong)
    assert tree.accepts(blob, content)


@pytest.mark.usefixtures("_small")
def test_the_root_says_the_size() -> None:
    """The same pages under another size are another dataset."""
    index = indexed(STREAM)
    assert not Tree(index.root, 99).accepts(TOP_BLOB, index.top)


@given(st.integers(1, 2**42))
def test_sizes_add_up_whatever_the_size(size: int) -> None:
    shape = TreeShape(size)
    last = shape.pieces - 1
    assert last * module.PIECE + shape.length(Blob(PIECES, last)) == size
    assert shape.length(Blob(PIECES, last + 1)) == shape.length(Blob(PAGES, shape.pages)) == 0
    hashes = (shape.pages - 1) * module.FANOUT * DIGEST_SIZE + shape.length(Blob(PAGES, shape.pages - 1))
    assert hashes == shape.pieces * DIGEST_SIZE
    assert max(shape.length(TOP_BLOB), shape.length(Blob(PAGES, 0))) <= module.FANOUT * DIGEST_SIZE
    assert shape.length(Blob(TOP, 1)) == shape.length(Blob(7, 0)) == 0
