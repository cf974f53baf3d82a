"""The corpus of a run: its training data, and the validation data that are never trained on.

- `stdlib`: the Python sources of the running interpreter's standard library, found by sysconfig: real text, about
  12 MB, on every machine. Left out are tests, which many installations lack, and installed packages and the build's own
  `_sysconfigdata`, which differ from machine to machine.
- `files`: files that the user names, and folders with all text files below them except hidden ones; or one packed file,
  as members exchange it. Files that are not text (texts.py) are skipped and reported.
- `stream`: a dataset of the hub (stream.py).
- Other names belong to extensions (node/base/extensions.py) and need not be text: `digits` are pictures.

Each text is followed by a NUL byte, which no text contains. A token is a byte, unless the manifest names a tokenizer
(tokens.py).

Whole texts are held out for validation, by the hash of their relative path. So machines with slightly different files
(another Python version) never train on what others validate on. That needs many texts: if the hash holds out less than
half or more than twice the wanted share, as with a single file, the tail of every text is held out instead. All members
make the same choice, as the digest in the manifest fixes `files`. If a run is about a part of the data (selection.py),
the whole is split before the part is selected.
"""

from __future__ import annotations

import dataclasses
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor

from shoal.node.base.extensions import extension
from shoal.node.base.room import check_memory
from shoal.node.manifest.data import NO_COLUMNS, Columns, DataSpec
from shoal.node.training.data.files import DataFile, LeftOut, find
from shoal.node.training.data.hub import from_hub, open_stream
from shoal.node.training.data.selection import Selector, all_texts, selected, selector
from shoal.node.training.data.stream import Stream
from shoal.node.training.data.texts import END_OF_TEXT, Text, check_any, encode_name, is_pack, read_pack, read_texts
from shoal.node.training.data.tokens import Tokenizer
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import Digest, digest

EXCLUDED_FOLDERS = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
STDLIB_SHARE = 0.1
STDLIB_MIN = 1 << 20  # bytes of validation text, however small the library is
FILES_SHARE = 0.05
TEXT_SOURCES = ("stdlib", "files", "stream")  # data of other names belong to extensions
MEMORY_CHECK_EVERY = 32 << 20  # bytes of text between two checks of free memory


class Batches(Protocol):
    """A source of samples that are not text."""

    def batch(self, seed: int, lane: int, round: int, step: int, batch: int) -> Tensor:
        """The samples of one inner step, a pure function of these numbers."""


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """Training and validation data as vectors of bytes (uint8) or tokens (int32), with facts about their source."""

    train: Tensor
    validation: Tensor
    digest: Digest  # of all texts and their relative paths
    files: int
    skipped: int  # files that gave no text
    stream: Stream | None = None  # trained on instead of `train`, for streamed datasets
    batches: Batches | None = None  # trained on instead of `train`, if not text; then `validation` has rows of samples


def load_corpus(spec: DataSpec, paths: Sequence[Path] = (), vocab: int | None = None) -> Corpus:
    """The corpus of a manifest's `[data]`; `paths` is where this machine has the text of `files`, or its packed file.

    If the manifest names a partition's file, its path comes last. Raises LocalError if the data cannot be read, are not
    those of the manifest, or a token is not below `vocab`.
    """
    if spec.name not in TEXT_SOURCES:
        corpus: Corpus = extension(spec.name).corpus(spec, paths)
        return corpus
    select, paths = selector(spec, paths)
    if spec.name == "stream":
        return stream_corpus(spec, vocab)
    if spec.name == "stdlib":
        corpus = stdlib_corpus(select=select)
        return corpus if not spec.tokenizer else tokenized(corpus, Tokenizer(spec, from_hub(spec), vocab))
    texts, left_out = read_data(paths, spec.columns)
    corpus = texts_corpus(texts, left_out.files.total, spec.tokenizer, select)
    if spec.digest and spec.digest != corpus.digest.hex():
        where = paths[0] if is_packed(paths) else "the text given to --data"
        raise LocalError(f"{where} is not the text that the run is about (its digest differs)", code="other-data")
    if not spec.tokenizer:
        return corpus
    content = from_hub(spec) if spec.is_from_hub else tokenizer_file(spec, texts)
    return tokenized(corpus, Tokenizer(spec, content, vocab))


def tokenizer_of(spec: DataSpec, paths: Sequence[Path], vocab: int) -> Tokenizer:
    """The tokenizer that `load_corpus` uses, for a run that names one."""
    if spec.is_from_hub:
        return Tokenizer(spec, from_hub(spec), vocab)
    named = (each for each in find(paths) if each.name == spec.tokenizer)
    texts = read_pack(paths[0]) if is_packed(paths) else list(read_texts(named))
    return Tokenizer(spec, tokenizer_file(spec, texts), vocab)


def stream_corpus(spec: DataSpec, vocab: int | None) -> Corpus:
    """The corpus of a streamed dataset: only its validation data are in memory."""
    assert spec.stream is not None
    tokenizer = Tokenizer(spec, from_hub(spec), vocab) if spec.tokenizer else None

    def encode(text: str) -> Tensor:
        return tokenizer.encode([text]) if tokenizer is not None else join([text.encode()]).int()

    stream = Stream(open_stream(spec.stream), spec.column, encode)
    nothing = torch.empty(0, dtype=torch.int32)
    return Corpus(nothing, stream.validation(), digest("corpus", b"stream"), 0, 0, stream)


def tokenized(corpus: Corpus, tokenizer: Tokenizer) -> Corpus:
    """The corpus with int32 tokens in place of bytes."""
    train, validation = (tokenizer.encode(texts_of(part)) for part in (corpus.train, corpus.validation))
    return dataclasses.replace(corpus, train=train, validation=validation)


def texts_of_data(spec: DataSpec, paths: Sequence[Path]) -> list[Text]:
    """All texts of the manifest's data, without the tokenizer's file and before any selection."""
    if spec.name not in TEXT_SOURCES:
        texts: list[Text] = extension(spec.name).texts()
        return texts
    if spec.name == "stdlib":
        return stdlib_texts(Path(sysconfig.get_path("stdlib")))[0]
    return [text for text in read_data(paths, spec.columns)[0] if text.name != spec.tokenizer]


def texts_of(joined: Tensor) -> list[str]:
    """The texts in a vector of bytes that `join` has made."""
    return [part.decode("utf-8", "replace") for part in joined.numpy().tobytes().split(END_OF_TEXT)[:-1]]


def tokenizer_file(spec: DataSpec, texts: Sequence[Text]) -> bytes:
    """The content of the tokenizer's file among a run's data; LocalError if there is none."""
    found = next((text.content for text in texts if text.name == spec.tokenizer), None)
    if found is None:
        raise LocalError(
            f"the run's data have no file {spec.tokenizer}, which its manifest names as the tokenizer",
            code="tokenizer-missing",
        )
    return found


def stdlib_texts(root: Path) -> tuple[list[Text], int]:
    """The sources of the standard library in `root`, and how many of them are not text."""
    sources = ((path.relative_to(root).as_posix(), path) for path in root.rglob("*.py") if path.is_file())
    left_out = LeftOut()
    texts = list(read_texts((DataFile(name, path) for name, path in sources if is_source(name)), left_out=left_out))
    return texts, left_out.files.total


def stdlib_corpus(root: Path | None = None, select: Selector = all_texts) -> Corpus:
    """The corpus of the standard library below `root`, by default the running interpreter's."""
    root = root or Path(sysconfig.get_path("stdlib"))
    texts, skipped = stdlib_texts(root)
    if sum(len(text.content) for text in texts) < 4 * STDLIB_MIN:
        raise LocalError(
            f"this Python has no standard library sources in {root}; name your own text with --data",
            code="data-missing",
        )
    return assemble(texts, skipped, *part_by_hash(texts, select, STDLIB_SHARE, STDLIB_MIN))


def is_packed(paths: Sequence[Path]) -> bool:
    """Whether a run's data are one packed file."""
    return len(paths) == 1 and is_pack(paths[0])


def read_data(paths: Sequence[Path], columns: Columns = NO_COLUMNS) -> tuple[list[Text], LeftOut]:
    """The texts of a packed file or of a person's files, and what was left out of these."""
    return (read_pack(paths[0]), LeftOut()) if is_packed(paths) else read_files(paths, columns)


def read_files(paths: Sequence[Path], columns: Columns = NO_COLUMNS) -> tuple[list[Text], LeftOut]:
    """The texts among `paths` in the dataset's order (of tables, the text in `columns`), and what was left out.

    Raises NoRoom as soon as there is not enough memory to join them.
    """
    left_out = LeftOut()
    texts = list(_checking_memory(read_texts(find(paths, left_out), columns, left_out)))
    check_any(sum(len(text.content) for text in texts), paths, left_out)
    return texts, left_out


def _checking_memory(texts: Iterable[Text]) -> Iterator[Text]:
    """Passes texts on; checks that there is memory to join them, which takes as much again as the texts so far."""
    held = checked = 0
    for text in texts:
        held += len(text.content)
        if held - checked >= MEMORY_CHECK_EVERY:
            checked = held
            check_memory(held, "joining the text that is read so far")
        yield text


def texts_corpus(texts: Sequence[Text], skipped: int, tokenizer: str = "", select: Selector = all_texts) -> Corpus:
    """The corpus of texts in the dataset's order; the text named `tokenizer` is not learned from."""
    learned = [text for text in texts if text.name != tokenizer] if tokenizer else texts
    total = max(1, sum(len(text.content) for text in learned))
    _, held = split_by_hash(learned, FILES_SHARE)
    if not FILES_SHARE / 2 <= sum(map(len, held)) / total <= FILES_SHARE * 2:
        return assemble(texts, skipped, *split_by_tail(selected(learned, select), FILES_SHARE))
    return assemble(texts, skipped, *part_by_hash(learned, select, FILES_SHARE))


def part_by_hash(
    texts: Sequence[Text], select: Selector, share: float, least: int = 0
) -> tuple[list[bytes], list[bytes]]:
    """Training and validation texts of the selected part; those held out of the whole data are held out of the part.

    So no run about another part, or about all data, trains on them. If nothing or everything of the part would be held
    out, the tails of its texts are held out instead.
    """
    held, part = held_out(texts, share, least), selected(texts, select)
    train = [text.content for text in part if text.name not in held]
    kept = [text.content for text in part if text.name in held]
    return (train, kept) if (train and kept) or len(part) == len(texts) else split_by_tail(part, share)


def is_source(name: str) -> bool:
    """Whether a relative path is that of a source file of the standard library itself."""
    *folders, file = name.split("/")
    is_hidden = any(part.startswith(".") for part in name.split("/"))
    is_excluded = is_hidden or file.startswith("_sysconfigdata") or EXCLUDED_FOLDERS & {*folders}
    return file.endswith(".py") and not is_excluded


def split_by_hash(texts: Sequence[Text], share: float, least: int = 0) -> tuple[list[bytes], list[bytes]]:
    """Training and validation texts; held out are the lowest hashes: about `share`, and at least `least` bytes."""
    held = held_out(texts, share, least)
    train = [text.content for text in texts if text.name not in held]
    return train, [text.content for text in texts if text.name in held]


def held_out(texts: Sequence[Text], share: float, least: int = 0) -> set[str]:
    """The names of the texts that are held out for validation."""
    held: set[str] = set()
    size = 0
    for text in sorted(texts, key=lambda text: fraction(text.name)):
        if fraction(text.name) >= share and size >= least:
            break
        held.add(text.name)
        size += len(text.content)
    return held


def split_by_tail(texts: Sequence[Text], share: float) -> tuple[list[bytes], list[bytes]]:
    """Training and validation texts: the beginnings and the ends of all texts."""
    cuts = [(text.content, round(len(text.content) * (1 - share))) for text in texts]
    return [content[:cut] for content, cut in cuts], [content[cut:] for content, cut in cuts]


def fraction(name: str) -> float:
    """A number in [0, 1) that depends only on the relative path: its hash."""
    return int.from_bytes(blake3(encode_name(name)).digest()[:6], "little") / 2**48


def assemble(texts: Sequence[Text], skipped: int, train: list[bytes], held: list[bytes]) -> Corpus:
    """The corpus of texts that are already split."""
    parts = (part for text in texts for part in (encode_name(text.name), text.content))
    return Corpus(join(train), join(held), digest("corpus", *parts), len(texts), skipped)


def join(contents: list[bytes]) -> Tensor:
    """One uint8 vector of all texts, each followed by the end-of-text byte."""
    joined = END_OF_TEXT.join([*contents, b""]) if contents else b""
    tensor: Tensor = torch.from_numpy(np.frombuffer(bytearray(joined), np.uint8))
    return tensor
