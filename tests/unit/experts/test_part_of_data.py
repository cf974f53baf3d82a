"""The data of a part: text that is held out of the whole is held out of every part."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.node.manifest.manifest import DataSpec
from shoal.node.training.data.corpus import load_corpus, texts_of_data
from shoal.node.training.data.selection import check_parts
from shoal.node.training.data.store import Store
from shoal.protocol.base.errors import LocalError


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each text is unlike all others."""
    folder = tmp_path_factory.mktemp("texts")
    for number in range(600):
        path = folder / f"d{number % 3}" / "deep" / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text number {number:04} of d{number % 3};" * 20)
    return folder


def parts_of(joined: object) -> set[bytes]:
    return set(joined.numpy().tobytes().split(b"\0")[:-1])  # type: ignore[attr-defined]


def part(*only: str, **more: str) -> DataSpec:
    return DataSpec.model_validate({"name": "files", "only": only, **more})


def test_parts_divide_what_is_trained_on_and_what_is_held_out_alike(texts: Path) -> None:
    whole = load_corpus(part(), [texts])
    parts = [load_corpus(part(f"d{number}/*"), [texts]) for number in range(3)]
    assert set.union(*(parts_of(each.train) for each in parts)) == parts_of(whole.train)
    assert set.union(*(parts_of(each.validation) for each in parts)) == parts_of(whole.validation)
    assert sum(len(each.train) for each in parts) == len(whole.train)
    assert all(len(each.validation) for each in parts)
    assert all(b"of d1" in text for text in parts_of(parts[1].train))


def test_a_star_stands_for_slashes_and_several_patterns_add_up(texts: Path) -> None:
    one = parts_of(load_corpus(part("*/deep/1.txt", "d2/*"), [texts]).train)
    assert any(b"number 0001" in text for text in one)
    assert len(one) > 150
    assert part("D2/*").takes("d2/a") is False, "case means something, on every machine"


def test_a_part_of_nothing_is_refused(texts: Path) -> None:
    with pytest.raises(LocalError, match="the part is empty"):
        load_corpus(part("nowhere/*"), [texts])
    whole = texts_of_data(part(), [texts])
    check_parts(whole, {"a": part("d0/*")})
    with pytest.raises(LocalError, match=r"the part b is empty: no text of the data is named like x/\*"):
        check_parts(whole, {"a": part("d0/*"), "b": part("x/*")})
    with pytest.raises(LocalError, match="the part b is empty"):
        check_parts(texts_of_data(DataSpec(), []), {"a": part("json/*"), "b": part("no-such-module/*")})


def test_a_part_without_a_held_out_text_validates_on_the_ends_of_its_own(texts: Path) -> None:
    held = parts_of(load_corpus(part(), [texts]).validation)
    kept = next(number for number in range(600) if f"text number {number:04}".encode() not in b"".join(held))
    corpus = load_corpus(part(f"*/{kept}.txt"), [texts])
    whole = (texts / f"d{kept % 3}/deep/{kept}.txt").read_bytes()
    assert corpus.train.numpy().tobytes()[:-1] + corpus.validation.numpy().tobytes()[:-1] == whole
    assert len(corpus.validation) > 1


def test_a_packed_dataset_is_checked_as_a_whole_and_then_cut(texts: Path, tmp_path: Path) -> None:
    packed = Store(tmp_path / "store").add([texts])
    assert packed.path is not None
    spec = part("d0/*", digest=packed.digest.hex())
    from_pack, from_files = (load_corpus(spec, [path]) for path in (packed.path, texts))
    assert from_pack.train.equal(from_files.train)
    assert from_pack.digest == packed.digest


def test_a_part_of_the_standard_library() -> None:
    whole, json = load_corpus(DataSpec()), load_corpus(DataSpec(only=("json/*", "asyncio/*")))
    assert 0 < len(json.train) < len(whole.train)
    assert parts_of(json.train) <= parts_of(whole.train) | parts_of(whole.validation)
    assert b"class JSONDecoder" in b"".join(parts_of(json.train) | parts_of(json.validation))
