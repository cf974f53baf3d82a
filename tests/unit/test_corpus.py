"""Which bytes of a text are trained on, and which are held out."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from torch import Tensor

from shoal.node.base.room import AvailableMemory, Memory, NoRoom
from shoal.node.manifest.manifest import DataSpec
from shoal.node.training.data.corpus import (
    STDLIB_MIN,
    Corpus,
    fraction,
    is_source,
    load_corpus,
    read_files,
    split_by_hash,
    stdlib_corpus,
)
from shoal.node.training.data.texts import Text
from shoal.protocol.base.errors import LocalError


def files_corpus(paths: Sequence[Path]) -> Corpus:
    return load_corpus(DataSpec(name="files"), paths)


def content(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def many(count: int = 400) -> dict[str, bytes]:
    return {f"d{i % 7}/{i}.txt": f"text number {i}\n".encode() * 10 for i in range(count)}


def test_stdlib_is_real_text_with_at_least_a_megabyte_held_out() -> None:
    corpus = load_corpus(DataSpec())
    assert len(corpus.train) > 4_000_000
    assert 1_000_000 <= len(corpus.validation) - 1 <= 4_000_000
    assert b"class Counter(dict)" in content(corpus.train) + content(corpus.validation)


@pytest.mark.parametrize(
    ("name", "belongs"),
    [
        ("ast.py", True),
        ("json/decoder.py", True),
        ("json/test.py", True),
        ("test/test_ast.py", False),
        ("unittest/test/testmock/support.py", False),
        ("site-packages/numpy/core.py", False),
        ("_sysconfigdata__linux_x86_64-linux-gnu.py", False),
        ("lib-dynload/array.so", False),
    ],
)
def test_what_belongs_to_the_standard_library(name: str, belongs: bool) -> None:
    assert is_source(name) is belongs


def test_a_python_without_sources_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="--data"):
        stdlib_corpus(write(tmp_path, {"os.py": b"x = 1\n"}))


def test_at_least_the_least_is_held_out() -> None:
    texts = [Text(f"{i}.py", bytes(100_000)) for i in range(200)]
    for share in (0.0, 0.01, 0.1):
        train, held = split_by_hash(texts, share, STDLIB_MIN)
        assert STDLIB_MIN <= sum(map(len, held)) <= max(STDLIB_MIN, share * 20_000_000) * 1.5
        assert len(train) + len(held) == 200


def test_a_text_is_either_trained_on_or_held_out_whole(tmp_path: Path) -> None:
    files = many()
    corpus = files_corpus([write(tmp_path, files)])
    train, held = (set(content(each).split(b"\0")) - {b""} for each in (corpus.train, corpus.validation))
    assert train | held == set(files.values())
    assert not train & held
    assert 0.025 <= len(corpus.validation) / (len(corpus.train) + len(corpus.validation)) <= 0.1


def test_more_files_move_no_text_between_the_sides(tmp_path: Path) -> None:
    few, more = many(300), many(500)
    held = [set(split_by_hash([Text(*each) for each in files.items()], 0.1)[1]) for files in (few, more)]
    assert held[0] <= held[1]
    assert not (held[1] - held[0]) & set(few.values())
    assert 0 <= fraction("a/b.py") < 1


def test_the_place_of_the_folder_and_the_order_on_disk_do_not_matter(tmp_path: Path) -> None:
    files = many()
    first = files_corpus([write(tmp_path / "a", files)])
    second = files_corpus([write(tmp_path / "b", dict(reversed(files.items())))])
    assert first.digest == second.digest
    assert content(first.validation) == content(second.validation)
    assert content(first.train) == content(second.train)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_of_few_files_the_tails_are_held_out(tmp_path: Path, count: int) -> None:
    files = {f"{i}.txt": f"{i}".encode() * 1000 for i in range(count)}
    corpus = files_corpus([write(tmp_path, files)])
    assert content(corpus.train) == b"".join(f"{i}".encode() * 950 + b"\0" for i in range(count))
    assert content(corpus.validation) == b"".join(f"{i}".encode() * 50 + b"\0" for i in range(count))


def test_what_is_not_text_is_skipped_and_counted(tmp_path: Path) -> None:
    files = {"a.txt": b"text" * 99, "latin.txt": b"caf\xe9", "zero.bin": b"a\0b", ".hidden": b"secret", ".git/x": b"y"}
    corpus = files_corpus([write(tmp_path, files)])
    assert (corpus.files, corpus.skipped) == (1, 2)
    assert b"secret" not in content(corpus.train) + content(corpus.validation)


def test_files_and_folders_may_be_mixed(tmp_path: Path) -> None:
    write(tmp_path, {"one.txt": b"first", "folder/two.txt": b"second"})
    corpus = files_corpus([tmp_path / "one.txt", tmp_path / "folder"])
    assert corpus.files == 2


@pytest.mark.parametrize("files", [{}, {"a.bin": b"\0"}, {"empty.txt": b""}], ids=["none", "binary", "empty"])
def test_no_text_is_a_clear_error(tmp_path: Path, files: dict[str, bytes]) -> None:
    with pytest.raises(LocalError, match="no text"):
        files_corpus([write(tmp_path, files)])


def test_a_missing_path_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="neither"):
        files_corpus([tmp_path / "nowhere"])


def test_another_text_than_the_manifests_is_refused(tmp_path: Path) -> None:
    root = write(tmp_path, many())
    spec = DataSpec(name="files", digest=files_corpus([root]).digest.hex())
    assert load_corpus(spec, [root]).files == 400
    shutil.rmtree(root / "d1")
    with pytest.raises(LocalError, match="digest"):
        load_corpus(spec, [root])


def test_text_that_cannot_be_joined_is_refused_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads all of it is ended by the system, without a word."""
    write(tmp_path, {f"{number}.txt": b"The quick brown fox\n" * (17 << 16) for number in range(4)})  # 85 MiB
    free = 100 << 20
    monkeypatch.setattr("shoal.node.base.room.available_memory", lambda: AvailableMemory(Memory(2 * free, free)))
    assert len(read_files([tmp_path])[0]) == 4
    free = 40 << 20
    with pytest.raises(NoRoom, match=r"joining the text that is read so far takes 4\d.* of memory, and this machine"):
        read_files([tmp_path])
