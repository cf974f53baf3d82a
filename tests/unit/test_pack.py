"""A dataset's stream: it can be read back, its hash is its name, and bytes of a stranger are at most refused."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.manifest.manifest import DataSpec
from shoal.node.training.data import texts as module
from shoal.node.training.data.corpus import load_corpus
from shoal.node.training.data.files import find
from shoal.node.training.data.store import Store
from shoal.node.training.data.texts import SUFFIX, Text, file_digest, pack, read_texts, stream_hasher, unpack
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import digest
from tests.unit.dataset_kit import write_texts

NAMES = st.text(st.characters(codec="utf-8"), max_size=30) | st.binary(max_size=9).map(
    lambda name: name.decode("utf-8", "surrogateescape")
)
TEXTS = st.lists(st.builds(Text, NAMES, st.binary(max_size=60)), max_size=8)


@given(TEXTS)
def test_what_was_packed_is_unpacked(texts: list[Text]) -> None:
    assert list(unpack(memoryview(b"".join(pack(texts))))) == texts


@given(TEXTS)
def test_its_hash_is_the_digest_of_the_corpus(texts: list[Text]) -> None:
    hasher = stream_hasher()
    for part in pack(texts):
        hasher.update(part)
    parts = (part for text in texts for part in (module.encode_name(text.name), text.content))
    assert hasher.digest() == digest("corpus", *parts)


@given(st.binary(max_size=200))
def test_any_bytes_are_texts_or_refused(stream: bytes) -> None:
    with suppress(LocalError):
        assert b"".join(pack(unpack(memoryview(stream)))) == stream


@pytest.mark.parametrize("cut", [1, 7, 8, 9, 20])
def test_a_stream_that_ends_too_soon_is_refused(cut: int) -> None:
    stream = b"".join(pack([Text("a.txt", b"content")]))
    with pytest.raises(LocalError, match="not a packed dataset"):
        list(unpack(memoryview(stream[:-cut])))


def test_a_length_beyond_all_bounds_is_refused() -> None:
    with pytest.raises(LocalError, match="not a packed dataset"):
        list(unpack(memoryview(b"\xff" * 64)))


def test_texts_are_counted_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [Text(str(number), b"") for number in range(4)]
    stream = memoryview(b"".join(pack(texts)))
    monkeypatch.setattr(module, "MAX_TEXTS", 3)
    with pytest.raises(LocalError, match="more than 3 texts"):
        list(unpack(stream))
    with pytest.raises(LocalError, match="more than 3 texts"):
        list(pack(texts))


@pytest.mark.parametrize("name", ["../../evil", "/etc/passwd", "C:\\evil", "a\0b", "x" * 5000, "CON"])
def test_a_path_that_would_escape_is_only_a_name(tmp_path: Path, name: str) -> None:
    stream = b"".join(pack([Text(name, b"text " * 100), Text("ok.txt", b"more " * 100)]))
    file = tmp_path / f"corpus{SUFFIX}"
    file.write_bytes(stream)
    spec = DataSpec(name="files", digest=file_digest(file).hex())
    assert load_corpus(spec, [file]).files == 2
    assert list(tmp_path.iterdir()) == [file]
    assert not (tmp_path.parent / "evil").exists()


def test_a_packed_corpus_is_the_corpus_of_its_files(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts", size=3000)
    dataset = Store(tmp_path / "data").add([texts])
    assert dataset.path is not None
    spec = DataSpec(name="files", digest=dataset.digest.hex())
    from_files, from_pack = load_corpus(spec, [texts]), load_corpus(spec, [dataset.path])
    assert from_files.digest == from_pack.digest == dataset.digest
    assert from_files.train.equal(from_pack.train)
    assert from_files.validation.equal(from_pack.validation)


def test_texts_of_one_path_are_in_the_order_of_their_content(tmp_path: Path) -> None:
    for folder, content in (("a", "second"), ("b", "first"), ("c", "third")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.txt").write_text(content)
    found = [find([tmp_path / folder for folder in order]) for order in ("abc", "cab")]
    assert [[text.content for text in read_texts(each)] for each in found] == [[b"first", b"second", b"third"]] * 2
