"""Tokenizers, tables of token bytes and streams of tokens: made by the tests, without a network."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from pydantic import ValidationError

from shoal.node.manifest.data import Columns, DataSpec, StreamSpec
from shoal.node.manifest.manifest import Manifest, ModelSpec
from shoal.node.manifest.method import MethodSpec
from shoal.node.training.data import corpus as corpora
from shoal.node.training.data import hub as hubs
from shoal.node.training.data import tokens
from shoal.node.training.data.corpus import load_corpus, tokenizer_of
from shoal.node.training.data.store import Store, measure
from shoal.node.training.data.stream import Stream, is_held_out
from shoal.node.training.data.tables import rows
from shoal.node.training.trainer.inner import InnerTrainer
from shoal.protocol.base.errors import LocalError, TransportError
from tests.hf_kit import needs

WORDS = [f"word{n}" for n in range(40)]
SENTENCES = [" ".join(WORDS[(n * 7 + k) % 40] for k in range(12)) for n in range(300)]
TEXT = Columns("text")
COMMIT = "0123456789" * 4
STREAM = StreamSpec(dataset="somebody/words", revision=COMMIT)


def tokenizer(folder: Path, end: str = "<end>") -> Path:
    """A tokenizer of whole words."""
    library = needs("tokenizers")
    vocab = {"<unk>": 0, end: 1, **{word: number for number, word in enumerate(WORDS, 2)}}
    made = library.Tokenizer(library.models.WordLevel(vocab, unk_token="<unk>"))
    made.pre_tokenizer = library.pre_tokenizers.Whitespace()
    made.add_special_tokens([end])
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Texts, and their tokenizer."""
    root = tmp_path / "data"
    root.mkdir()
    tokenizer(root)
    for number, sentence in enumerate(SENTENCES):
        (root / f"{number:03}.txt").write_text(sentence)
    return root


SPEC = DataSpec(name="files", tokenizer="tokenizer.json", end_of_text="<end>")


def test_texts_become_tokens_with_an_end_after_each(folder: Path) -> None:
    corpus = load_corpus(SPEC, [folder], vocab=64)
    assert corpus.train.dtype == torch.int32
    assert len(corpus.train) + len(corpus.validation) == 300 * (12 + 1), "the tokenizer itself is not learned from"
    assert int((corpus.train == 1).sum() + (corpus.validation == 1).sum()) == 300
    assert corpus.train[12] == 1
    assert len(corpus.validation) > 13
    found = tokenizer_of(SPEC, [folder], 64)
    assert found.decode(corpus.train[:12].tolist()) in SENTENCES


def test_texts_are_encoded_a_few_at_a_time_to_the_same_tokens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once, their encodings took some forty times the memory of the texts."""
    whole = load_corpus(SPEC, [folder], vocab=64)
    monkeypatch.setattr(tokens, "BATCH_CHARACTERS", 200)
    sizes = [len(each) for each in tokens._batches(SENTENCES)]
    assert sum(sizes) == len(SENTENCES)
    assert max(sizes) < 5
    assert torch.equal(load_corpus(SPEC, [folder], vocab=64).train, whole.train)


def test_the_tokenizer_is_part_of_what_the_manifest_names(folder: Path, tmp_path: Path) -> None:
    """So members get it with the text, by the same hash."""
    made = Store(tmp_path / "store").add([folder])
    assert made.path is not None
    spec = SPEC.model_copy(update={"digest": made.digest.hex()})
    packed, own = load_corpus(spec, [made.path], 64), load_corpus(spec, [folder], 64)
    assert torch.equal(packed.train, own.train)
    tokenizer(folder, end="<other>")
    with pytest.raises(LocalError, match=r"its digest differs|is no token"):
        load_corpus(spec, [folder], 64)


def test_what_does_not_fit_the_model_is_refused(folder: Path) -> None:
    with pytest.raises(LocalError, match="has 42 tokens, and the run's model 41"):
        load_corpus(SPEC, [folder], vocab=41)
    with pytest.raises(LocalError, match="'</s>' is no token"):
        load_corpus(SPEC.model_copy(update={"end_of_text": "</s>"}), [folder], 64)
    with pytest.raises(LocalError, match=r"no file missing\.json"):
        load_corpus(SPEC.model_copy(update={"tokenizer": "missing.json"}), [folder], 64)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(LocalError, match="cannot be read"):
        load_corpus(SPEC, [folder], 64)


def test_one_of_the_hub_is_named_by_a_commit(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    import huggingface_hub

    asked: list[Any] = []

    def download(repository: str, file: str, revision: str, token: bool) -> str:
        assert token is False, "nothing is read with the owner's login"
        asked.append((repository, file, revision))
        return str(folder / "tokenizer.json")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    spec = SPEC.model_copy(update={"tokenizer": f"hub:somebody/words@{COMMIT}"})
    assert torch.equal(load_corpus(spec, [folder], 64).train[:12], load_corpus(SPEC, [folder], 64).train[:12])
    assert asked == [("somebody/words", "tokenizer.json", COMMIT)]
    for wrong in ("hub:somebody/words@main", "hub:../../etc@" + COMMIT, "a/../b", ".hidden"):
        with pytest.raises(ValueError, match="tokenizer"):
            DataSpec(name="files", tokenizer=wrong)


def test_a_model_is_trained_on_tokens(folder: Path) -> None:
    model = ModelSpec(vocab=64, dim=16, layers=1, heads=2, kv_heads=1, hidden=16, context=16)
    method = MethodSpec(inner_steps=30, batch=4, inner_lr=1e-2, warmup_steps=1)
    trainer = InnerTrainer(Manifest(name="a", model=model, data=SPEC, method=method), load_corpus(SPEC, [folder], 64))
    before = trainer.train(1, [0], lambda _: False).loss
    assert trainer.train(2, [0]).loss < 0.9 * before


# -- tables -------------------------------------------------------------------------------------------------


def write_jsonl(path: Path) -> Path:
    lines = [json.dumps({"text": sentence, "id": n}) for n, sentence in enumerate(SENTENCES)]
    path.write_text("\n".join([*lines, "", json.dumps({"text": None})]) + "\n")
    return path


def write_parquet(path: Path) -> Path:
    arrow, parquet = needs("pyarrow"), needs("pyarrow.parquet")
    parquet.write_table(arrow.table({"text": [*SENTENCES, None], "id": list(range(301))}), path, row_group_size=64)
    return path


@pytest.mark.parametrize("write", [write_jsonl, write_parquet])
def test_each_row_is_a_text(tmp_path: Path, write: Any) -> None:
    table = write(tmp_path / f"t.{write.__name__.removeprefix('write_')}")
    found = list(rows("t", table, TEXT))
    assert [content.decode() for _, content in found] == SENTENCES
    assert found[7][0] == "t/000000007"
    spec = DataSpec(name="files", column="text")
    corpus = load_corpus(spec, [table])
    assert corpus.files == 300
    whole = corpus.train.numpy().tobytes() + corpus.validation.numpy().tobytes()
    assert sorted(whole.split(b"\0")[:-1]) == sorted(each.encode() for each in SENTENCES)
    share = len(corpus.validation) / (len(corpus.train) + len(corpus.validation))
    assert 0.025 <= share <= 0.1, "rows are held out by their hash"
    made = Store(tmp_path / "store").add([table], TEXT)
    assert made.digest == corpus.digest == measure([table], TEXT).digest, "who gets the pack needs no library"
    assert made.digest != measure([write_jsonl(tmp_path / "t.jsonl")]).digest or write is write_parquet


def test_a_row_is_named_by_its_domain_so_that_parts_are_chosen_by_it(tmp_path: Path) -> None:
    arrow, parquet = needs("pyarrow"), needs("pyarrow.parquet")
    table = {"text": ["a", "b", "c", "d", "e"], "language": ["python", "c++", "../etc/x", None, "python"]}
    parquet.write_table(arrow.table(table), tmp_path / "t.parquet")
    found = [{"text": text, "language": each} for text, each in zip(*table.values(), strict=True)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, found)))
    columns = Columns("text", "language")
    for suffix in ("parquet", "jsonl"):
        names = [name for name, _ in rows("t", tmp_path / f"t.{suffix}", columns)]
        assert names == [
            "python/t/000000000",
            "c++/t/000000001",
            "_etc_x/t/000000002",
            "other/t/000000003",
            "python/t/000000004",
        ]
    spec = DataSpec(name="files", column="text", domain="language", only=("python/*",))
    corpus = load_corpus(spec, [tmp_path / "t.jsonl"])
    read = corpus.train.numpy().tobytes() + corpus.validation.numpy().tobytes()
    assert set(read.split(b"\0")) - {b""} == {b"a", b"e"}


def test_a_domain_without_a_column_of_text_is_refused() -> None:
    with pytest.raises(ValidationError, match="domain is a column of tables"):
        DataSpec(name="files", domain="language")


@pytest.mark.parametrize("write", [write_jsonl, write_parquet])
def test_a_column_that_is_not_there_is_named(tmp_path: Path, write: Any) -> None:
    table = write(tmp_path / f"t.{write.__name__.removeprefix('write_')}")
    with pytest.raises(LocalError, match="column 'body'"):
        load_corpus(DataSpec(name="files", column="body"), [table])


def test_a_file_that_is_no_table_is_named(tmp_path: Path) -> None:
    needs("pyarrow")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 not quite")
    (tmp_path / "b.jsonl").write_text('{"text": "a"}\nnothing\n')
    with pytest.raises(LocalError, match="cannot be read as parquet"):
        list(rows("a", tmp_path / "a.parquet", TEXT))
    with pytest.raises(LocalError, match="line 2 of"):
        list(rows("b", tmp_path / "b.jsonl", TEXT))


def test_without_a_column_a_file_of_lines_is_one_text_as_before(tmp_path: Path) -> None:
    assert load_corpus(DataSpec(name="files"), [write_jsonl(tmp_path / "t.jsonl")]).files == 1


# -- streams ------------------------------------------------------------------------------------------------


def opened(folder: Path, files: int) -> Any:
    """The library's own streaming of local files."""
    folder.mkdir()
    for number in range(files):
        lines = (json.dumps({"text": sentence}) for sentence in SENTENCES[number::files])
        (folder / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    names = sorted(map(str, folder.glob("*.jsonl")))
    return needs("datasets").load_dataset("json", data_files=names, split="train", streaming=True)


def encode(text: str) -> torch.Tensor:
    return torch.tensor([*text.encode(), 0], dtype=torch.int32)


def read(stream: Stream, lane: int, count: int = 12, round: int = 1) -> list[str]:
    """The texts that a lane reads in its first batches; the last one may be cut."""
    parts = [stream.batch(5, lane, round, 2, 64)[:, :-1].flatten() for _ in range(count)]
    return bytes(torch.cat(parts).tolist()).decode().split("\0")


@pytest.mark.parametrize("files", [1, 4])
def test_lanes_read_rows_of_their_own_and_none_that_validate(tmp_path: Path, files: int) -> None:
    dataset = opened(tmp_path / "files", files)
    lanes = [read(Stream(dataset, "text", encode), lane)[:-1] for lane in (0, 1)]
    assert lanes[0] != lanes[1]
    assert all(text in SENTENCES and not is_held_out(text) for lane in lanes for text in lane)
    assert lanes[0] == read(Stream(dataset, "text", encode), 0)[:-1], "whoever reads the lane"
    held = bytes(Stream(dataset, "text", encode).validation().tolist()).decode().split("\0")[:-1]
    assert sorted(held) == sorted(filter(is_held_out, SENTENCES))
    assert len(held) > 3


def test_who_comes_back_begins_with_another_file(tmp_path: Path) -> None:
    dataset = opened(tmp_path / "files", 8)
    first = {read(Stream(dataset, "text", encode), 0, 1, round)[0] for round in range(1, 9)}
    assert len(first) > 1


def test_windows_lie_side_by_side_and_go_on_from_batch_to_batch(tmp_path: Path) -> None:
    stream = Stream(opened(tmp_path / "files", 1), "text", encode)
    one, two = (stream.batch(5, 0, 1, 3, 32) for _ in range(2))
    assert one.shape == (3, 33)
    assert torch.equal(one[0, -1:], one[1, :1])
    assert torch.equal(one[2, -1:], two[0, :1])


def test_a_stream_ends_never_unless_it_is_empty(tmp_path: Path) -> None:
    texts = read(Stream(opened(tmp_path / "files", 2), "text", encode), 0, 400)
    assert len(texts) > 2 * len(SENTENCES)
    nothing = needs("datasets").IterableDataset.from_generator(lambda: iter([{"text": ""}]))
    with pytest.raises(LocalError, match="no text in its column"):
        read(Stream(nothing, "text", encode), 0)
    other = needs("datasets").IterableDataset.from_generator(lambda: iter([{"body": "a"}]))
    with pytest.raises(LocalError, match="no column 'text', but body"):
        read(Stream(other, "text", encode), 0)


def test_a_run_over_a_stream_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = opened(tmp_path / "files", 4)
    monkeypatch.setattr(corpora, "open_stream", lambda spec: dataset)
    spec = DataSpec(name="stream", column="text", stream=STREAM)
    corpus = load_corpus(spec)
    assert len(corpus.validation) > 100
    model = ModelSpec(dim=16, layers=1, heads=2, kv_heads=1, hidden=16, context=16)
    method = MethodSpec(inner_steps=30, batch=4, inner_lr=1e-2, warmup_steps=1)
    trainer = InnerTrainer(Manifest(name="a", model=model, data=spec, method=method), corpus)
    before = trainer.train(1, [0], lambda _: False).loss
    assert trainer.train(2, [0]).loss < 0.9 * before


def test_a_stream_that_cannot_be_had_is_said_to_be_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("nobody answers")

    monkeypatch.setattr(needs("datasets"), "load_dataset_builder", refuse)
    with pytest.raises(TransportError, match="cannot stream somebody/words: ConnectionError: nobody answers"):
        hubs.open_stream(STREAM)


def status(code: int) -> Exception:
    return needs("huggingface_hub.errors").HfHubHTTPError("the hub says", response=Mock(status_code=code))


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        ("DatasetNotFoundError", LocalError),
        ("DataFilesNotFoundError", LocalError),
        ("LocalEntryNotFoundError", TransportError),
        *((code, LocalError) for code in (401, 403, 404)),
        *((code, TransportError) for code in (408, 429, 500, 503)),
    ],
)
def test_what_the_hub_does_not_have_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, what: str | int, kind: type[Exception]
) -> None:
    library = needs("datasets")
    places = (library.exceptions, needs("huggingface_hub.errors"))
    error = status(what) if isinstance(what, int) else next(getattr(p, what) for p in places if hasattr(p, what))("no")

    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(library, "load_dataset_builder", refuse)
    with pytest.raises(kind, match="cannot stream somebody/words"):
        hubs.open_stream(STREAM)


def test_a_tokenizer_that_the_hub_cannot_give_now_is_waited_for_and_one_that_it_lacks_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub, http = needs("huggingface_hub"), needs("httpx2")
    spec = DataSpec(name="files", tokenizer=f"hub:somebody/words@{COMMIT}")
    for error, kind in (
        (http.ConnectError("nobody answers"), TransportError),
        (status(503), TransportError),
        (status(404), LocalError),
        (PermissionError("the cache"), LocalError),
    ):
        monkeypatch.setattr(hub, "hf_hub_download", Mock(side_effect=error))
        with pytest.raises(kind, match="cannot get the tokenizer"):
            hubs.from_hub(spec)


OWN = f"hf://datasets/somebody/words@{COMMIT}/a.jsonl"


def with_files(monkeypatch: pytest.MonkeyPatch, files: dict[str, list[str]] | None) -> list[Any]:
    """The hub's answer is a dataset of these files; what it is asked."""
    asked: list[Any] = []

    def answer(*given: object, **named: object) -> Any:
        asked.append((given, named))
        config = SimpleNamespace(data_files=files)
        return SimpleNamespace(config=config, as_streaming_dataset=lambda split: split)

    monkeypatch.setattr(needs("datasets"), "load_dataset_builder", answer)
    return asked


def test_only_the_hub_is_asked_and_without_a_login(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = with_files(monkeypatch, {"train": [OWN]})
    assert hubs.open_stream(STREAM) == "train"
    assert asked == [(("hf://datasets/somebody/words", None), {"revision": COMMIT, "token": False})]


def test_a_folder_of_the_datasets_name_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("datasets")
    (tmp_path / "somebody/words").mkdir(parents=True)
    (tmp_path / "somebody/words/a.jsonl").write_text('{"text": "mine"}\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(TransportError, match="cannot stream somebody/words"):
        hubs.open_stream(STREAM)


@pytest.mark.parametrize(
    "files",
    [
        {"train": [OWN], "test": ["/etc/passwd"]},
        {"train": ["hf://datasets/somebody/secrets@main/a.jsonl"]},
        {"train": [f"{OWN}::/etc/passwd"]},
        None,
    ],
)
def test_a_card_that_names_other_files_is_refused(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, list[str]] | None
) -> None:
    with_files(monkeypatch, files)
    with pytest.raises(LocalError, match="its card names"):
        hubs.open_stream(STREAM)


@pytest.mark.parametrize(
    "table",
    [
        {"name": "stream"},
        {"name": "stream", "stream": STREAM},
        {"name": "files", "stream": STREAM, "column": "text"},
        {"name": "stdlib", "tokenizer": "tokenizer.json"},
        {"name": "files", "end_of_text": "</s>"},
        {"name": "stream", "column": "text", "stream": {"dataset": "a/b", "revision": "main"}},
        {"name": "stream", "column": "text", "stream": {"dataset": "../b", "revision": COMMIT}},
        {"name": "stream", "column": "text", "stream": {"dataset": "text", "revision": COMMIT}},
    ],
)
def test_data_that_make_no_sense_are_refused(table: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"data|stream|column|tokenizer|end_of_text|pattern"):
        DataSpec.model_validate(table)


def test_what_is_new_is_not_written_where_it_is_not_used() -> None:
    assert Manifest(name="golden").canonical().count(b"tokenizer") == 0
    named = Manifest(name="golden", data=DataSpec(name="stream", column="text", stream=STREAM))
    assert named.canonical().count(COMMIT.encode()) == 1
    assert named.digest != Manifest(name="golden").digest
