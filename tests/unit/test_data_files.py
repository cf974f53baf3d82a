"""A person's files as data: read, whatever program wrote them; else refused by name and line, or left out by name."""

from __future__ import annotations

import bz2
import datetime
import decimal
import gzip
import json
import lzma
import os
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from shoal.node.base.toml import dump
from shoal.node.client.report.story import read_story
from shoal.node.inference.ensemble.panel import windows_of
from shoal.node.inference.folder import read_table
from shoal.node.manifest.data import NO_COLUMNS, Columns, DataSpec
from shoal.node.manifest.inlining import with_config
from shoal.node.manifest.manifest import load_manifest, parse_manifest
from shoal.node.training.data.corpus import load_corpus, read_files, tokenizer_of
from shoal.node.training.data.files import NAMED, LeftOut, find
from shoal.node.training.data.store import Store, measure
from shoal.node.training.data.stream import Stream
from shoal.node.training.data.texts import read_texts
from shoal.node.training.data.tokens import Tokenizer
from shoal.node.training.data.vocabulary import ByteVocabulary, TokenizerVocabulary
from shoal.protocol.base.errors import LocalError
from tests.hf_kit import TABLE, needs

TEXT = Columns("text")
ROWS = ["first \u00e9", "second", 'third "quoted", with, commas; and\ttabs']
LINES = "".join(json.dumps({"id": n, "text": row}, ensure_ascii=False) + "\n" for n, row in enumerate(ROWS))


def contents(path: Path, columns: Columns = TEXT, left_out: LeftOut | None = None) -> list[str]:
    noted = left_out if left_out is not None else LeftOut()
    return [text.content.decode() for text in read_texts(find([path], noted), columns, noted)]


def put(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# -- what is read ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("name", ["t.jsonl", "t.csv", "t.txt"])
def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path, name: str, encoding: str) -> None:
    text = {"t.jsonl": LINES, "t.csv": "id,text\n1,first \u00e9\n", "t.txt": "first \u00e9"}[name]
    marked = text if encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32") else "\ufeff" + text
    found = contents(put(tmp_path, name, marked.encode(encoding)))
    assert found[0] == "first \u00e9"
    assert len(found) == (3 if name == "t.jsonl" else 1)


ARRAY = json.dumps([{"text": row} for row in ROWS], indent=2)
SPOKEN = 'id,text\r\n0,first \u00e9\r\n1,second\r\n2,"third ""quoted"", with, commas; and\ttabs"\r\n'
READABLE = {
    "t.jsonl": LINES,
    "T.JSONL": LINES,
    "t.ndjson": LINES,
    "lines.json": LINES,
    "array.json": ARRAY,
    "array.jsonl": ARRAY,
    "crlf.jsonl": LINES.replace("\n", "\r\n"),
    "blank.jsonl": "\n\n" + LINES.replace("\n", "\n\n") + "   \n",
    "no-end.jsonl": LINES.rstrip("\n"),
    "joined.jsonl": "\ufeff" + LINES + "\n\ufeff",
    "t.csv": SPOKEN,
    "T.CSV": SPOKEN,
    "bom.csv": "\ufeff" + SPOKEN,
    "blank.csv": "\n" + SPOKEN + "\n\n",
    "semicolon.csv": 'id;text\n0;first \u00e9\n1;second\n2;"third ""quoted"", with, commas; and\ttabs"\n',
    "said.csv": 'sep=|\nid|text\n0|first \u00e9\n1|second\n2|"third ""quoted"", with, commas; and\ttabs"\n',
    "t.tsv": 'id\ttext\n0\tfirst \u00e9\n1\tsecond\n2\t"third ""quoted"", with, commas; and\ttabs"\n',
}


@pytest.mark.parametrize("name", READABLE)
def test_rows_are_read_from_whatever_programs_write(tmp_path: Path, name: str) -> None:
    left_out = LeftOut()
    assert contents(put(tmp_path, name, READABLE[name]), left_out=left_out) == ROWS
    assert left_out.words() == []


def zstd(content: bytes) -> bytes:
    arrow = needs("pyarrow")
    return bytes(arrow.compress(content, codec="zstd", asbytes=True))


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), (".zst", zstd)],
)
def test_compressed_tables_are_unpacked(tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]) -> None:
    content = compress(LINES.encode("utf-8-sig"))
    assert contents(put(tmp_path, f"t.jsonl{suffix}", content)) == ROWS
    assert contents(put(tmp_path, f"T.CSV{suffix.upper()}", compress(SPOKEN.encode()))) == ROWS
    assert contents(put(tmp_path, f"twice.jsonl{suffix}", content + compress(LINES.encode()))) == ROWS * 2
    cut = put(
        tmp_path, f"cut.jsonl{suffix}", compress(os.urandom(5000).hex().join(['{"text": "', '"}\n']).encode())[:900]
    )
    with pytest.raises(LocalError, match=rf"cut\.jsonl{suffix} is damaged, or was cut short"):
        contents(cut)
    foreign = put(tmp_path, f"none.jsonl{suffix}", LINES)
    with pytest.raises(LocalError, match=rf"none\.jsonl{suffix}"):
        contents(foreign)


def test_a_field_may_be_huge(tmp_path: Path) -> None:
    huge = "word " * 200_000
    assert contents(put(tmp_path, "t.csv", f'text,id\n"{huge}",1\n')) == [huge]


def test_a_file_of_one_column_is_split_at_nothing_that_its_text_may_hold(tmp_path: Path) -> None:
    assert contents(put(tmp_path, "t.tsv", "text\nhello | world\nhello|\na, b; c\n")) == [
        "hello | world",
        "hello|",
        "a, b; c",
    ]
    with pytest.raises(LocalError, match=r"line 2 of \S*t\.csv has 2 fields, and the first line 1 names"):
        contents(put(tmp_path, "t.csv", "text\nhello,\n"))


@pytest.mark.parametrize("head", ["x" * 200_000, "sep=\r", 'sep="', ",".join(f"column {n}" for n in range(30_000))])
def test_a_first_line_that_names_no_columns_is_refused_in_a_sentence(tmp_path: Path, head: str) -> None:
    with pytest.raises(LocalError, match=r"t\.csv") as refused:
        contents(put(tmp_path, "t.csv", f"{head}\nrow\n"))
    assert len(str(refused.value)) < 2_000 + len(str(tmp_path))


def test_old_parquet_holds_text_as_bytes(tmp_path: Path) -> None:
    arrow, parquet = needs("pyarrow"), needs("pyarrow.parquet")
    parquet.write_table(arrow.table({"text": [row.encode() for row in ROWS]}), tmp_path / "t.parquet")
    assert contents(tmp_path / "t.parquet") == ROWS


def test_settings_in_json_are_one_text_as_ever_and_named(tmp_path: Path) -> None:
    put(tmp_path, "package.json", '{\n  "name": "x"\n}\n')
    put(tmp_path, "one.json", '{"text": "a row of its own"}\n')
    left_out = LeftOut()
    assert contents(tmp_path, left_out=left_out) == ["a row of its own", '{\n  "name": "x"\n}\n']
    assert left_out.files.total == 0
    assert any("package.json" in words and "read whole" in words for words in left_out.words())


def test_a_tokenizer_beside_tables_is_read_alone(tmp_path: Path) -> None:
    library = needs("tokenizers")
    made = library.Tokenizer(library.models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    (tmp_path / "data").mkdir()
    put(tmp_path, "data/tokenizer.json", "\ufeff" + made.to_str())
    put(tmp_path, "data/t.parquet", os.urandom(99))
    spec = DataSpec(name="files", tokenizer="tokenizer.json", column="text")
    assert tokenizer_of(spec, [tmp_path / "data/tokenizer.json", tmp_path / "data/t.parquet"], 2).size == 2


# -- what is refused ------------------------------------------------------------------------------------------

LATIN = b'{"text": "caf\xe9"}\n'
REFUSED: dict[str, tuple[str, bytes | str, str]] = {
    "latin1": ("t.jsonl", LINES.encode() + LATIN, r"line 4 of \S*t\.jsonl is no UTF-8 text.*0xe9.*iconv"),
    "latin1 csv": ("t.csv", b"id,text\n1,caf\xe9\n", r"line 2 of \S*t\.csv is no UTF-8 text.*0xe9"),
    "half of UTF-16": ("t.jsonl", LINES.encode("utf-16") + b"\x41", r"line 4 of \S*t\.jsonl is no UTF-8 text.*0x41"),
    "a number": ("t.jsonl", '{"text": "a"}\n{"text": 5}\n', r"column 'text' in line 2 of \S*t\.jsonl holds a number"),
    "nested": ("t.jsonl", '{"text": {"body": "a"}}\n', r"line 1 of \S*t\.jsonl holds an object of 'body'"),
    "a list": ("t.json", '[{"text": ["a"]}]', r"row 1 of \S*t\.json holds a list"),
    "cut": ("t.jsonl", LINES + '{"text": "abc', r"line 4 of \S*t\.jsonl.*last line.*cut short"),
    "no object": ("t.jsonl", '{"text": "a"}\n"b"\n', r"line 2 of \S*t\.jsonl is no JSON object with a column 'text'"),
    "another column": (
        "t.ndjson",
        '{"body": "a"}\n',
        r"line 1 of \S*t\.ndjson .* column 'text', but an object of 'body'",
    ),
    "other columns": ("t.json", '{"body": 1}\n{"body": 2}\n', r"line 1 of \S*t\.json .*'body'"),
    "an array of others": ("t.json", '[{"body": 1}]', r"row 1 of \S*t\.json .*'body'"),
    "broken array": ("t.json", '[{"text": "a"},\n{"text" "b"}]', r"line 2 of \S*t\.json is not JSON"),
    "csv without": ("t.csv", "id;body\n1;2\n", r"t\.csv has no column 'text', but id, body"),
    "csv twice": ("t.csv", "text,id,text\na,1,b\n", r"t\.csv has 2 columns 'text'"),
    "csv twice but for a space": ("t.csv", "text, text\na,b\n", r"t\.csv has 2 columns 'text'"),
    "json twice": ("t.jsonl", '{"text": "x"}\n{"text": "a", "text": "b"}\n', r"line 2 of \S*t\.jsonl.*'text' twice"),
    "array twice": ("t.json", '[{"text": "a", "text": "b"}]', r"t\.json.*'text' twice"),
    "object twice": ("t.json", '{"text": "a", "text": "b"}', r"t\.json.*'text' twice"),
    "short row": ("t.csv", "id,text\n1,a\n2\n", r"line 3 of \S*t\.csv has 1 fields, and the first line 2 names"),
    "long row": ("t.csv", "id,text\n1,a\n2,b, c\n", r"line 3 of \S*t\.csv has 3 fields"),
    "open quote": ("t.csv", 'id,text\n1,"a\n2,b\n', r"line \d of \S*t\.csv is no CSV"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_in_a_table_is_refused_by_file_and_line(tmp_path: Path, case: str) -> None:
    name, content, words = REFUSED[case]
    path = put(tmp_path, name, content)
    with pytest.raises(LocalError, match=words):
        contents(path)
    with pytest.raises(LocalError, match=words):
        measure([path], TEXT)


def test_what_is_wrong_in_parquet_is_refused_by_row(tmp_path: Path) -> None:
    arrow, parquet = needs("pyarrow"), needs("pyarrow.parquet")
    spoilt = arrow.Array.from_buffers(arrow.string(), 2, arrow.array([b"a", b"\xe9\xe9"], arrow.binary()).buffers())
    tables = {
        "latin": ({"text": spoilt}, r"'text' in row 2 of \S*latin\.parquet is no UTF-8"),
        "nested": ({"text": [{"body": "a"}]}, r"row 1 of \S*nested\.parquet holds an object of 'body'"),
        "other": ({"body": ["a"]}, r"other\.parquet has no column 'text', but body"),
    }
    twice = arrow.table([arrow.array(["a"]), arrow.array(["b"])], names=["text", "text"])
    parquet.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(LocalError, match=r"twice\.parquet has 2 columns 'text'"):
        contents(tmp_path / "twice.parquet")
    for name, (table, words) in tables.items():
        parquet.write_table(arrow.table(table), tmp_path / f"{name}.parquet")
        with pytest.raises(LocalError, match=words):
            contents(tmp_path / f"{name}.parquet")
    put(tmp_path, "empty.parquet", b"")
    with pytest.raises(LocalError, match=r"empty\.parquet cannot be read as parquet"):
        contents(tmp_path / "empty.parquet")


@pytest.mark.parametrize("content", [b"caf\xe9", b"a\nb\0", gzip.compress(b"text")], ids=["latin", "nul", "gz"])
def test_a_file_that_was_named_by_itself_and_is_no_text_is_refused(tmp_path: Path, content: bytes) -> None:
    put(tmp_path, "good.txt", "text")
    with pytest.raises(LocalError, match=r"bad\.txt(\.gz)? "):
        read_files([tmp_path / "good.txt", put(tmp_path, "bad.txt", content)])


# -- what is left out, and named ------------------------------------------------------------------------------


def test_rows_without_text_are_counted_and_named(tmp_path: Path) -> None:
    rows = [{"text": "a"}, {"text": None}, {"text": ""}, {"text": "b\0c"}, {"text": "d"}, {"text": "e\ud800f"}]
    path = put(tmp_path, "t.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    left_out = LeftOut()
    assert contents(path, left_out=left_out) == ["a", "d"]
    said = "\n".join(left_out.words())
    assert "2 rows were skipped, because each has no text in 'text': line 2 of" in said
    assert "1 row was skipped, because it holds a NUL, which no text does: line 4 of" in said
    assert "1 row was skipped, because it holds half of a character, which no text does: line 6 of" in said
    assert left_out.files.total == 0, "a file of which rows are skipped is none that is skipped"


DOMAINS = Columns("text", "d")


def domains(path: Path, left_out: LeftOut | None = None) -> list[str]:
    noted = left_out if left_out is not None else LeftOut()
    return [text.name.rpartition(f"/{path.name}/")[0] for text in read_texts(find([path], noted), DOMAINS, noted)]


def with_domains(folder: Path, *found: object) -> Path:
    return put(folder, "t.jsonl", "".join(json.dumps({"text": "a", "d": each}) + "\n" for each in found))


def test_a_domain_is_a_word_or_a_number_however_it_is_written(tmp_path: Path) -> None:
    assert domains(with_domains(tmp_path, 1, 1.0, "1", 2.5, -3, True, 1e30)) == [
        *("1", "1", "1", "2.5", "-3", "True", "1000000000000000019884624838656")
    ]
    arrow, parquet = needs("pyarrow"), needs("pyarrow.parquet")
    day = datetime.date(2024, 5, 1)
    for several, names in (
        ([1.0, 2.0, None], ["1", "2", "other"]),  # as pandas writes whole numbers of which one is missing
        ([b"de", "é".encode(), None], ["de", "é", "other"]),
        ([day], ["2024-05-01"]),
        ([decimal.Decimal("1.50")], ["1.50"]),
        (arrow.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
    ):
        table = arrow.table({"text": ["a"] * len(several), "d": several})
        parquet.write_table(table, tmp_path / "t.parquet")
        assert domains(tmp_path / "t.parquet") == names


@pytest.mark.parametrize(("found", "words"), [({"x": 1}, "an object of 'x'"), (["a"], "a list")])
def test_a_domain_that_is_neither_is_refused_by_its_line(tmp_path: Path, found: object, words: str) -> None:
    match = rf"'d' in line 2 of \S*t\.jsonl holds {words}, and no word or number"
    with pytest.raises(LocalError, match=match):
        domains(with_domains(tmp_path, "a", found))
    arrow, parquet = needs("pyarrow"), needs("pyarrow.parquet")
    parquet.write_table(arrow.table({"text": ["a"], "d": [b"\xff"]}), tmp_path / "t.parquet")
    with pytest.raises(LocalError, match=r"'d' in row 1 of \S*t\.parquet holds bytes, and no word or number"):
        domains(tmp_path / "t.parquet")


def test_domains_that_get_another_name_or_become_one_are_named(tmp_path: Path) -> None:
    left_out = LeftOut()
    long = "x" * 70
    found = ("plain", "A B", "A_B", "A/B", "A B", "..", "other", long, "caf\u00e9", "q\ud800")
    names = domains(with_domains(tmp_path, *found), left_out)
    assert names == ["plain", "A_B", "A_B", "A_B", "A_B", "other", "other", "x" * 64, "caf\u00e9", "q_"]
    said = "\n".join(left_out.words())
    assert "the domain A_B is what the data call 'A B', 'A/B', 'A_B'" in said
    assert "the domain other is what the data call '..', 'other'" in said
    assert f"the domain {'x' * 64} is what the data call '{long}'" in said
    assert r"the domain q_ is what the data call 'q\ud800'" in said
    assert "plain" not in said
    assert "caf\u00e9" not in said
    said.encode()


def test_rows_that_name_no_domain_are_counted(tmp_path: Path) -> None:
    left_out = LeftOut()
    assert domains(with_domains(tmp_path, "a", None, "", float("nan")), left_out) == ["a", "other", "other", "other"]
    (words,) = left_out.words()
    assert words.startswith("3 rows are in the domain other, because each names none in 'd': line 2 of")


def test_of_very_many_domains_some_are_named(tmp_path: Path) -> None:
    left_out = LeftOut()
    domains(with_domains(tmp_path, *(f"a {n}" for n in range(100)), *(f"b{' ' * n}" for n in range(1, 200))), left_out)
    words = left_out.words()
    assert len(words) == NAMED + 1
    assert words[-1] == "81 more domains have other names than in the data"
    assert all(len(each) < 5000 for each in words)


def test_files_without_text_are_counted_once_each(tmp_path: Path) -> None:
    put(tmp_path, "good.jsonl", LINES)
    put(tmp_path, "empty.jsonl", "")
    put(tmp_path, "blank.ndjson", "\n \n\r\n")
    put(tmp_path, "names.csv", "id,text\n")
    put(tmp_path, "array.json", "[]")
    put(tmp_path, "latin.txt", b"a\nb\xe9")
    put(tmp_path, "notes.txt.gz", gzip.compress(b"text"))
    put(tmp_path, "nul.bin", b"a\0")
    corpus = load_corpus(DataSpec(name="files", column="text"), [tmp_path])
    assert (corpus.files, corpus.skipped) == (3, 7)
    said = "\n".join(read_files([tmp_path], TEXT)[1].words())
    for name in (
        "empty.jsonl",
        "blank.ndjson",
        "names.csv",
        "array.json",
        "latin.txt, line 2, byte 0xe9",
        "notes.txt.gz",
    ):
        assert name in said
    assert "nul.bin" in said
    assert "good.jsonl" not in said


def test_without_any_text_the_error_names_what_there_is(tmp_path: Path) -> None:
    put(tmp_path, "t.jsonl", '{"text": null}\n')
    put(tmp_path, "b.bin", b"\xff")
    with pytest.raises(LocalError, match=r"(?s)no text in .*b\.bin.*t\.jsonl"):
        read_files([tmp_path], TEXT)


def test_of_very_many_some_are_named_and_all_counted(tmp_path: Path) -> None:
    for number in range(50):
        put(tmp_path, f"{number:02}.bin", b"\0")
    put(tmp_path, "a.txt", "a")
    (words,) = read_files([tmp_path])[1].words()
    assert words.startswith("50 files were skipped")
    assert words.endswith(f"and {50 - NAMED} more")


def test_sockets_and_pipes_are_named_and_not_waited_for(tmp_path: Path) -> None:
    put(tmp_path, "a.txt", "a")
    os.mkfifo(tmp_path / "pipe.txt")
    with socket.socket(socket.AF_UNIX) as open_socket:
        open_socket.bind(str(tmp_path / "socket.txt"))
        left_out = LeftOut()
        assert contents(tmp_path, NO_COLUMNS, left_out) == ["a"]
    said = "\n".join(left_out.words())
    assert "is a pipe" in said
    assert "pipe.txt" in said
    assert "is a socket" in said
    assert "socket.txt" in said
    with pytest.raises(LocalError, match=r"pipe\.txt is a pipe, neither a file nor a folder"):
        read_files([tmp_path / "pipe.txt"])


def test_what_is_hidden_is_named(tmp_path: Path) -> None:
    put(tmp_path, "a.txt", "a")
    put(tmp_path, ".git/config", "b")
    put(tmp_path, "below/.secret", "c")
    left_out = LeftOut()
    assert contents(tmp_path, NO_COLUMNS, left_out) == ["a"]
    (words,) = left_out.words()
    assert "2 hidden files and folders left out" in words
    assert ".git" in words
    assert ".secret" in words
    assert contents(tmp_path / ".git", NO_COLUMNS) == ["b"], "a hidden one that was named is meant"


def test_names_may_be_any_bytes(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path)
    for name, content in ((b"good\xff.txt", b"a"), (b"bad\xfe\n.bin", b"\0"), (b"t\xfd.jsonl", LINES.encode())):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content)
    texts, left_out = read_files([tmp_path], TEXT)
    assert len(texts) == 4
    (words,) = left_out.words()
    assert r"bad\xfe\n.bin" in words
    made = Store(tmp_path / "store").add([Path(os.fsdecode(os.path.join(folder, b"good\xff.txt")))])
    assert made.index.size > 0
    path = Path(os.fsdecode(os.path.join(folder, b"t\xfd.jsonl")))
    with pytest.raises(LocalError) as refused:
        contents(path, Columns("body"))
    assert r"t\xfd.jsonl" in str(refused.value)
    str(refused.value).encode()


# -- folders: links, rights, and files that go ----------------------------------------------------------------


def names(root: Path, left_out: LeftOut | None = None) -> list[str]:
    return sorted(each.name for each in find([root], left_out))


def test_a_linked_folder_is_followed_once(tmp_path: Path) -> None:
    put(tmp_path, "elsewhere/a.txt", "a")
    put(tmp_path, "elsewhere/deep/b.txt", "b")
    put(tmp_path, "data/own/c.txt", "c")
    for name in ("first", "second"):
        (tmp_path / "data" / name).symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data/again").symlink_to("own")  # which is read by its own path
    assert names(tmp_path / "data") == ["first/a.txt", "first/deep/b.txt", "own/c.txt"]


def test_a_linked_file_is_read(tmp_path: Path) -> None:
    put(tmp_path, "a.txt", "a")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/b.txt").symlink_to(tmp_path / "a.txt")
    assert contents(tmp_path / "data", NO_COLUMNS) == ["a"]


def test_links_in_circles_end(tmp_path: Path) -> None:
    put(tmp_path, "data/below/a.txt", "a")
    put(tmp_path, "beside.txt", "not meant")
    (tmp_path / "data/below/up").symlink_to(tmp_path / "data")
    (tmp_path / "data/above").symlink_to(tmp_path)
    left_out = LeftOut()
    assert names(tmp_path / "data", left_out) == ["below/a.txt"]
    (words,) = left_out.words()
    assert "is a link to a folder above the data" in words
    assert "data/above" in words
    (tmp_path / "data/round").symlink_to("round")
    with pytest.raises(LocalError, match=r"data/round.*circle"):
        find([tmp_path / "data"])


def test_a_link_to_nothing_is_an_error(tmp_path: Path) -> None:
    put(tmp_path, "data/a.txt", "a")
    (tmp_path / "data/gone.txt").symlink_to("/nowhere/at/all")
    with pytest.raises(LocalError, match=r"data/gone\.txt is a link to /nowhere/at/all, which is not there.*remove"):
        find([tmp_path / "data"])


def test_a_file_that_goes_meanwhile_is_an_error(tmp_path: Path) -> None:
    put(tmp_path, "a.txt", "a")
    put(tmp_path, "b.txt", "b")
    texts = read_texts(find([tmp_path]))
    assert next(texts).content == b"a"
    (tmp_path / "b.txt").unlink()
    with pytest.raises(LocalError, match=r"cannot read \S*b\.txt: No such file.*gone.*try again"):
        next(texts)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that another user may enter, as pytest's own may not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def as_nobody() -> Callable[[str], str]:
    """Runs Python as a user without rights, and gives what it prints."""
    python = [sys.executable]
    if os.getuid() == 0:
        python = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *python]

    def run(program: str) -> str:
        done = subprocess.run([*python, "-c", program], check=False, capture_output=True, text=True, cwd="/")
        return done.stdout + done.stderr

    try:
        reached = run("import shoal.node; print('reached')")
    except OSError as error:
        reached = str(error)
    if reached != "reached\n":
        pytest.skip(f"DOES NOT RUN: no user without rights can run this Python here: {reached[-300:]}")
    return run


def test_what_may_not_be_read_is_an_error(shared: Path, as_nobody: Callable[[str], str]) -> None:
    for file, shut in (("folder/shut/b.txt", "folder/shut"), ("file/shut.txt", "file/shut.txt")):
        put(shared, file, "b")
        put(shared, f"{file.partition('/')[0]}/a.txt", "a")
        (shared / shut).chmod(0)
    said = as_nobody(
        "from pathlib import Path\n"
        "from shoal.node.training.data.corpus import read_files\n"
        "from shoal.protocol.base.errors import LocalError\n"
        "for name in ('folder', 'file'):\n"
        f"    try: print(len(read_files([Path({str(shared)!r}, name)])[0]))\n"
        "    except LocalError as error: print(error)\n"
    )
    assert "folder/shut: Permission denied" in said
    assert "file/shut.txt: Permission denied" in said
    assert said.count("the right to read it") == 2


def test_a_path_that_may_not_be_looked_at_is_said_to_be_so(shared: Path, as_nobody: Callable[[str], str]) -> None:
    put(shared, "data/shut/b.txt", "b")
    (shared / "data/shut").chmod(0)
    path = str(shared / "data/shut/b.txt")
    commands = (["up", "--data", path], ["node", "start", "--data", path], ["up", "--manifest", path])
    said = as_nobody(
        "import os, sys\n"
        f"os.environ['SHOAL_HOME'] = {str(shared)!r}\n"
        "from shoal.node.client.cli import main\n"
        f"for command in {commands!r}:\n"
        "    sys.argv = ['shoal', *command]\n"
        "    try: main()\n"
        "    except SystemExit as end: assert end.code == 2\n"
    ).replace("\n", " ")
    for command in commands:
        assert f"cannot read {command[-2]} {path}: Permission denied (give the user" in said
    assert said.count("cannot read --data") == 2
    assert "Traceback" not in said


def test_a_packed_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"x\.shoalpack: the run's data are not a packed dataset"):
        load_corpus(DataSpec(name="files"), [put(tmp_path, "x.shoalpack", b"none of these")])


def test_a_streams_column_without_text_is_named_at_its_first_row() -> None:
    rows: list[dict[str, object]] = [{"text": None}, {"text": "a"}, {"text": ["b"]}]
    stream = Stream(rows, "text", lambda text: torch.tensor(list(text.encode()), dtype=torch.int32))
    with pytest.raises(LocalError, match="column 'text' in row 3 of the stream holds a list, and no text"):
        stream.validation()


# -- the other files that a person may write ------------------------------------------------------------------

WRITTEN_AS = ["utf-8", "utf-8-sig", "utf-16"]
MANIFEST = '# caf\u00e9\nname = "a"\n[model]\ndim = 64\nheads = 4\n'


@pytest.mark.parametrize("encoding", WRITTEN_AS)
def test_a_manifest_is_read_as_windows_writes_it(tmp_path: Path, encoding: str) -> None:
    path = put(tmp_path, "m.toml", MANIFEST.replace("\n", "\r\n").encode(encoding))
    assert load_manifest(path) == parse_manifest(MANIFEST)
    assert parse_manifest("\ufeff" + MANIFEST) == parse_manifest(MANIFEST), "as another program sends it"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (MANIFEST.encode("latin-1"), r"line 1 of the manifest \S*m\.toml is no UTF-8 text.*0xe9.*iconv"),
        (MANIFEST.replace("64", '"64"'), r"m\.toml, line 4: 'model\.dim'"),
        (MANIFEST.replace("dim", "dimm"), r"m\.toml, line 4: unknown key 'model\.dimm'"),
        (MANIFEST + "[data]\nname = 'files'\nsize = 3\n", r"m\.toml, line 6: 'data': size comes with pieces"),
        (MANIFEST + "rounds.last = -1\n", r"m\.toml, line 6: unknown key 'model\.rounds'"),
        ("rounds.last = -1\n" + MANIFEST, r"m\.toml, line 1: 'rounds\.last'"),
        (MANIFEST + "x = \n", r"m\.toml is not TOML: .*line 6"),
        (
            'name = "x"\n\n[model]\nname = "hf"\nconfig = "config.json"\n\n[method]\ninner_steps = 0\n',
            r"line 8: 'method",
        ),
    ],
)
def test_a_manifests_mistake_is_named_by_line_and_key(tmp_path: Path, content: bytes | str, words: str) -> None:
    put(tmp_path, "config.json", json.dumps({**TABLE, "note": "\U0001f600"}, indent=1))
    with pytest.raises(LocalError, match=words):
        load_manifest(put(tmp_path, "m.toml", content))


@pytest.mark.parametrize("encoding", WRITTEN_AS)
def test_a_config_is_read_as_windows_writes_it_and_keeps_the_manifests_lines(tmp_path: Path, encoding: str) -> None:
    put(tmp_path, "config.json", json.dumps(TABLE, indent=1).encode(encoding))
    text = '[model]\nname = "hf"\nconfig = "config.json"  # beside\n[method]\ninner_steps = 7\n'
    text += '[data]\nonly = ["\U0001f600*"]\n'
    made = with_config(text, tmp_path)
    assert made.split("\n")[4] == "inner_steps = 7"
    assert parse_manifest("name = 'a'\n" + made).data.only == ("\U0001f600*",)
    assert tomllib.loads(dump(tomllib.loads(made))) == tomllib.loads(made)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{\n"a": "\xe9"}', r"line 2 of model\.config \S*config\.json is no UTF-8 text"),
        ('{\n"a": 1,\n}', r"line 3 of model\.config \S*config\.json is not JSON"),
        ("[1]", r"model\.config \S*config\.json is no table of settings"),
    ],
)
def test_a_config_that_is_none_is_named_by_line(tmp_path: Path, content: bytes | str, words: str) -> None:
    put(tmp_path, "config.json", content)
    with pytest.raises(LocalError, match=words):
        with_config('[model]\nname = "hf"\nconfig = "config.json"\n', tmp_path)
    with pytest.raises(LocalError, match=words.replace(r"model\.config ", "")):
        read_table(tmp_path / "config.json")


@pytest.mark.parametrize("encoding", WRITTEN_AS)
def test_a_tokenizer_and_a_text_for_the_prior_are_read_as_windows_writes_them(tmp_path: Path, encoding: str) -> None:
    library = needs("tokenizers")
    made = library.Tokenizer(library.models.WordLevel({"<unk>": 0, "caf\u00e9": 1}, unk_token="<unk>"))
    content = made.to_str().encode(encoding)
    codec = TokenizerVocabulary(content, frozenset(), special=True, what="t.json")
    assert codec.encode("caf\u00e9") == [1]
    assert Tokenizer(DataSpec(name="files", tokenizer="t.json"), content).size == 2
    text = put(tmp_path, "prior.txt", ("caf\u00e9 " * 9).encode(encoding))
    plain = put(tmp_path, "p.txt", "caf\u00e9 " * 9)
    assert windows_of(str(text), ByteVocabulary(), 64) == windows_of(str(plain), ByteVocabulary(), 64)
    put(tmp_path, "p.txt", b"a\nb\xe9")
    with pytest.raises(LocalError, match=r"line 2 of the text for the prior, \S*p\.txt is no UTF-8"):
        windows_of(str(tmp_path / "p.txt"), ByteVocabulary(), 64)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"time": 1, "kind": "event"}\n{"time": 2, "kind": "x"}\n', r"line 1 of \S*metrics\.jsonl .* 'event'"),
        ('{"time": 1, "kind": "x"}\n[]\n{"time": 2, "kind": "x"}\n', r"line 2 of \S*metrics\.jsonl"),
        (
            '{"time": 1, "kind": "round", "peer": "a"}\n{"time": 2, "kind": "x"}',
            r"line 1 of \S*metrics\.jsonl .* 'round'",
        ),
        (b'{"time": 1, "kind": "x"}\n"\xe9"\n', r"line 2 of \S*metrics\.jsonl is no UTF-8 text"),
    ],
)
def test_a_record_of_a_play_that_is_none_is_named_by_line(tmp_path: Path, content: bytes | str, words: str) -> None:
    put(tmp_path, "metrics.jsonl", content)
    with pytest.raises(LocalError, match=words):
        read_story(tmp_path)


def test_a_record_of_a_play_that_an_editor_saved_is_read(tmp_path: Path) -> None:
    lines = '{"time": 1, "kind": "event", "event": "plan", "text": "a"}\r\n\r\n{"time": 2, "kind": "event", "ev'
    put(tmp_path, "metrics.jsonl", lines.encode("utf-16"))
    assert [each.text for each in read_story(tmp_path).events] == ["a"]
