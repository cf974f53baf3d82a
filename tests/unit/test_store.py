"""Datasets on disk: nothing is believed that was not hashed, and nothing good is fetched twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shoal.node.training.data import store as module
from shoal.node.training.data.pieces import PAGES, PIECE, PIECES, TOP_BLOB, Blob
from shoal.node.training.data.store import INDEX, NEW_PREFIX, PACKED, PART, Dataset, Download, Store, measure
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import Digest
from tests.unit.dataset_kit import packed, write_texts


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return packed(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data")


def fill(download: Download, dataset: Dataset, numbers: list[int]) -> None:
    for number in numbers:
        download.put(number, dataset.read(Blob(PIECES, number)) or b"")


def spoil(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 1]))


def test_what_was_packed_is_found_again(tmp_path: Path, dataset: Dataset) -> None:
    home = Store(dataset.path.parents[1])  # type: ignore[union-attr]
    assert home.open(dataset.digest, dataset.root) == dataset
    assert home.open(dataset.digest, None) == dataset
    assert home.open(dataset.digest, Digest(bytes(32))) is None  # another tree over the same text
    assert home.open(Digest(bytes(32)), None) is None
    assert dataset.index.size == sum(8 + 8 + len("part 0/0.txt") + 200_000 for _ in range(7))


def test_packing_and_measuring_give_the_same_name(tmp_path: Path, store: Store) -> None:
    texts = write_texts(tmp_path / "texts", files=2)
    made, measured = store.add([texts]), measure([texts])
    assert (made.digest, made.root, made.index) == (measured.digest, measured.root, measured.index)
    assert store.add([texts]) == made  # again
    assert [path.name for path in (tmp_path / "data").iterdir()] == [made.digest.hex()]


def test_packing_without_text_leaves_nothing(tmp_path: Path, store: Store) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(LocalError, match="no text"):
        store.add([tmp_path / "empty"])
    assert list((tmp_path / "data").iterdir()) == []


def test_what_a_crash_left_half_packed_is_removed(tmp_path: Path, store: Store) -> None:
    left = tmp_path / "data" / f"{NEW_PREFIX}0123"
    left.mkdir(parents=True)
    (left / PACKED).write_bytes(b"half")
    store.tidy()
    assert not left.exists()


def test_each_place_of_the_tree_is_read_and_proved(dataset: Dataset) -> None:
    assert dataset.read(TOP_BLOB) == dataset.index.top
    assert dataset.read(Blob(PAGES, 0)) == dataset.index.hashes
    assert len(dataset.read(Blob(PIECES, 5)) or b"") == dataset.index.size - 5 * PIECE
    assert dataset.path is not None
    spoil(dataset.path, 3 * PIECE + 17)
    assert dataset.read(Blob(PIECES, 3)) is None
    assert dataset.read(Blob(PIECES, 2)) is not None
    dataset.path.unlink()
    assert dataset.read(Blob(PIECES, 2)) is None  # no error, whose words would tell a stranger where our home is


def test_a_download_is_whole_in_the_end(store: Store, dataset: Dataset) -> None:
    download = store.begin(dataset.digest, dataset.index)
    assert download.missing == list(range(6))
    fill(download, dataset, [5, 3, 0, 1, 2, 4])
    made = download.finish()
    assert store.open(dataset.digest, dataset.root) == made
    assert made.path is not None
    assert dataset.path is not None
    assert made.path.read_bytes() == dataset.path.read_bytes()
    assert sorted(path.name for path in made.path.parent.iterdir()) == [PACKED, INDEX]


def test_a_download_goes_on_after_a_crash(store: Store, dataset: Dataset) -> None:
    fill(store.begin(dataset.digest, dataset.index), dataset, [0, 4])
    assert not store.has(dataset.digest)
    assert store.begin(dataset.digest, dataset.index).missing == [1, 2, 3, 5]


def test_a_piece_that_was_half_written_is_missing(store: Store, dataset: Dataset) -> None:
    fill(store.begin(dataset.digest, dataset.index), dataset, [0, 4])
    with (store.folder(dataset.digest) / PART).open("r+b") as file:
        file.truncate(4 * PIECE + 100)
    assert store.begin(dataset.digest, dataset.index).missing == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("position", [0, 2 * PIECE, 6 * PIECE - 200_000])
def test_of_a_damaged_dataset_only_what_is_damaged_is_missing(store: Store, dataset: Dataset, position: int) -> None:
    copy = copied(store, dataset)
    spoil(copy / PACKED, position)
    assert store.open(dataset.digest, dataset.root) is None
    download = store.begin(dataset.digest, dataset.index)
    assert download.missing == [position // PIECE]
    fill(download, dataset, download.missing)
    download.finish()
    assert store.open(dataset.digest, dataset.root) is not None


@pytest.mark.parametrize("content", [b"", b"x" * 50, b"\0" * 72], ids=["empty", "short", "zeros"])
def test_a_damaged_index_is_made_again(store: Store, dataset: Dataset, content: bytes) -> None:
    copy = copied(store, dataset)
    (copy / INDEX).write_bytes(content)
    assert store.open(dataset.digest, dataset.root) is not None
    (copy / INDEX).unlink()
    assert store.open(dataset.digest, dataset.root) is not None


def test_a_truncated_file_is_not_whole(store: Store, dataset: Dataset) -> None:
    copy = copied(store, dataset)
    (copy / PACKED).write_bytes(b"")
    assert store.open(dataset.digest, dataset.root) is None
    assert store.begin(dataset.digest, dataset.index).missing == list(range(6))


def test_pieces_of_something_else_than_the_digest_are_the_authors_mistake(store: Store, dataset: Dataset) -> None:
    download = store.begin(Digest(b"o" * 32), dataset.index)
    fill(download, dataset, list(range(6)))
    with pytest.raises(LocalError, match="contradicts itself"):
        download.finish()
    assert not store.has(Digest(b"o" * 32))


def test_a_full_disk_is_said_before_the_download(
    store: Store, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(dataset.path)  # type: ignore[arg-type]
    monkeypatch.setattr(
        "shoal.node.training.data.store.shutil.disk_usage", lambda path: usage._replace(free=module.MIN_FREE)
    )
    with pytest.raises(LocalError, match="make room"):
        store.begin(dataset.digest, dataset.index)


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path, dataset: Dataset) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LocalError, match="cannot keep data"):
        Store(tmp_path / "file").begin(dataset.digest, dataset.index)


def copied(store: Store, dataset: Dataset) -> Path:
    assert dataset.path is not None
    copy = store.folder(dataset.digest)
    shutil.copytree(dataset.path.parent, copy)
    return copy
