"""The text that a run learns from, as bytes, and the part of it that is never trained on.

- `stdlib`: the Python sources of the running interpreter's standard library, found by sysconfig: real text,
  about 12 MB, there on every machine. Tests are left out, because many installations come without them, and
  so are installed packages and the build's own `_sysconfigdata`, which are about the machine.
- What is named otherwise is an extension's (node/base/extensions.py), and need be no text: `digits` are pictures.
- `files`: what the user names: text files, and folders with all text files below them but hidden ones; or one packed
  file of them, as members give it to each other. What is not text (node/training/data/texts.py) is skipped, and named.

Texts are joined by NUL bytes, which no text holds: the NUL means "end of text". A token is a byte, unless the manifest
names a tokenizer (tokens.py).

Whole texts are held out for validation, chosen by the hash of their relative path: machines with slightly
different files (another Python version) never train on what another validates on. That needs many texts;
where the hash holds out less than half or more than twice the share that was asked for, as with a single
file, the tail of every text is held out instead. Where a run is about a part of the data (chosen.py), the
whole is split first. `files` has to be the same on every member (its digest is in
the manifest), so its members agree on which it is.
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
from shoal.node.training.data.chosen import Chooses, all_texts, chooser, part_of
from shoal.node.training.data.files import DataFile, LeftOut, find
from shoal.node.training.data.stream import Stream, open_stream
from shoal.node.training.data.texts import END_OF_TEXT, Text, check_any, encode_name, is_pack, read_pack, read_texts
from shoal.node.training.data.tokens import Tokenizer, from_hub
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import Digest, digest

NOT_STDLIB = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
STDLIB_SHARE = 0.1
STDLIB_LEAST = 1 << 20  # bytes of validation text, however small the library is
FILES_SHARE = 0.05
OF_TEXT = ("stdlib", "files", "stream")  # data of other names are an extension's
LOOK_EVERY = 32 << 20  # bytes of text between two looks at the memory that is free


class Batches(Protocol):
    """Samples that are no text."""

    def batch(self, seed: int, lane: int, round: int, step: int, batch: int) -> Tensor:
        """The rows of one inner step, a function of these numbers alone."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """Training and validation bytes (uint8 vectors), or tokens (int32), and what they were made of."""

    train: Tensor
    validation: Tensor
    digest: Digest  # of all texts and their relative paths
    files: int
    skipped: int  # files that gave no text
    stream: Stream | None = None  # what is trained on instead, where text is read as it comes
    batches: Batches | None = None  # what is trained on instead of text; then `validation` has rows of it


def load_corpus(spec: DataSpec, paths: Sequence[Path] = (), vocab: int | None = None) -> Corpus:
    """The corpus of a manifest; `paths` are where this machine keeps the text of `files`, or its packed file.

    The last of them is the partition's file where the manifest names one. LocalError if its tokens are not all below
    `vocab`.
    """
    if spec.name not in OF_TEXT:
        corpus: Corpus = extension(spec.name).corpus(spec, paths)
        return corpus
    chooses, paths = chooser(spec, paths)
    if spec.name == "stream":
        return streamed(spec, vocab)
    if spec.name == "stdlib":
        corpus = stdlib_corpus(chooses=chooses)
        return corpus if not spec.tokenizer else in_tokens(corpus, Tokenizer(spec, from_hub(spec), vocab))
    texts, left_out = read_data(paths, spec.columns)
    corpus = texts_corpus(texts, left_out.files.total, spec.tokenizer, chooses)
    if spec.digest and spec.digest != corpus.digest.hex():
        where = paths[0] if is_packed(paths) else "the text given to --data"
        raise LocalError(f"{where} is not the text that the run is about (its digest differs)")
    if not spec.tokenizer:
        return corpus
    return in_tokens(corpus, Tokenizer(spec, from_hub(spec) if spec.is_from_hub else among(spec, texts), vocab))


def tokenizer_of(spec: DataSpec, paths: Sequence[Path], vocab: int) -> Tokenizer:
    """The tokenizer of a run that names one, as `load_corpus` would have it."""
    if spec.is_from_hub:
        return Tokenizer(spec, from_hub(spec), vocab)
    named = (each for each in find(paths) if each.name == spec.tokenizer)
    texts = read_pack(paths[0]) if is_packed(paths) else list(read_texts(named))
    return Tokenizer(spec, among(spec, texts), vocab)


def streamed(spec: DataSpec, vocab: int | None) -> Corpus:
    """A corpus of which only what validates is here."""
    assert spec.stream is not None
    tokenizer = Tokenizer(spec, from_hub(spec), vocab) if spec.tokenizer else None

    def encode(text: str) -> Tensor:
        return tokenizer.encode([text]) if tokenizer is not None else join([text.encode()]).int()

    stream = Stream(open_stream(spec.stream), spec.column, encode)
    nothing = torch.empty(0, dtype=torch.int32)
    return Corpus(nothing, stream.validation(), digest("corpus", b"stream"), 0, 0, stream)


def in_tokens(corpus: Corpus, tokenizer: Tokenizer) -> Corpus:
    """The same corpus, of tokens: int32."""
    train, validation = (tokenizer.encode(texts_of(part)) for part in (corpus.train, corpus.validation))
    return dataclasses.replace(corpus, train=train, validation=validation)


def texts_of_data(spec: DataSpec, paths: Sequence[Path]) -> list[Text]:
    """All texts of the manifest's data that are learned from, whatever part of them a run is about."""
    if spec.name not in OF_TEXT:
        texts: list[Text] = extension(spec.name).texts()
        return texts
    if spec.name == "stdlib":
        return stdlib_texts(Path(sysconfig.get_path("stdlib")))[0]
    return [text for text in read_data(paths, spec.columns)[0] if text.name != spec.tokenizer]


def texts_of(joined: Tensor) -> list[str]:
    """The texts that `join` has joined."""
    return [part.decode("utf-8", "replace") for part in joined.numpy().tobytes().split(END_OF_TEXT)[:-1]]


def among(spec: DataSpec, texts: Sequence[Text]) -> bytes:
    """The file of that name among a run's data; LocalError if there is none."""
    found = next((text.content for text in texts if text.name == spec.tokenizer), None)
    if found is None:
        raise LocalError(f"the run's data have no file {spec.tokenizer}, which its manifest names as the tokenizer")
    return found


def stdlib_texts(root: Path) -> tuple[list[Text], int]:
    """The library's sources, and how many files of it are no text. Links to folders are not the library's own."""
    sources = ((path.relative_to(root).as_posix(), path) for path in root.rglob("*.py") if path.is_file())
    left_out = LeftOut()
    texts = list(read_texts((DataFile(name, path) for name, path in sources if is_source(name)), left_out=left_out))
    return texts, left_out.files.total


def stdlib_corpus(root: Path | None = None, chooses: Chooses = all_texts) -> Corpus:
    """The sources of the standard library below `root`, by default the running interpreter's."""
    root = root or Path(sysconfig.get_path("stdlib"))
    texts, skipped = stdlib_texts(root)
    if sum(len(text.content) for text in texts) < 4 * STDLIB_LEAST:
        raise LocalError(f"this Python has no standard library sources in {root}; name your own text with --data")
    return assemble(texts, skipped, *part_by_hash(texts, chooses, STDLIB_SHARE, STDLIB_LEAST))


def is_packed(paths: Sequence[Path]) -> bool:
    """Whether a run's data are one packed file."""
    return len(paths) == 1 and is_pack(paths[0])


def read_data(paths: Sequence[Path], columns: Columns = NO_COLUMNS) -> tuple[list[Text], LeftOut]:
    """The texts of a packed file, or of a person's own; and what of these is none."""
    return (read_pack(paths[0]), LeftOut()) if is_packed(paths) else read_files(paths, columns)


def read_files(paths: Sequence[Path], columns: Columns = NO_COLUMNS) -> tuple[list[Text], LeftOut]:
    """The texts among `paths` in order, and what is none; of tables' rows, those in `columns`.

    NoRoom as soon as they are more than there is memory to join them.
    """
    left_out = LeftOut()
    texts = list(_while_there_is_room(read_texts(find(paths, left_out), columns, left_out)))
    check_any(sum(len(text.content) for text in texts), paths, left_out)
    return texts, left_out


def _while_there_is_room(texts: Iterable[Text]) -> Iterator[Text]:
    """The same: what is held so far is held once more when it is joined."""
    held = looked = 0
    for text in texts:
        held += len(text.content)
        if held - looked >= LOOK_EVERY:
            looked = held
            check_memory(held, "joining the text that is read so far")
        yield text


def texts_corpus(texts: Sequence[Text], skipped: int, tokenizer: str = "", chooses: Chooses = all_texts) -> Corpus:
    """The corpus of texts that are in order, whoever packed them; the one named `tokenizer` is not learned from."""
    learned = [text for text in texts if text.name != tokenizer] if tokenizer else texts
    total = max(1, sum(len(text.content) for text in learned))
    _, held = split_by_hash(learned, FILES_SHARE)
    if not FILES_SHARE / 2 <= sum(map(len, held)) / total <= FILES_SHARE * 2:
        return assemble(texts, skipped, *split_by_tail(part_of(learned, chooses), FILES_SHARE))
    return assemble(texts, skipped, *part_by_hash(learned, chooses, FILES_SHARE))


def part_by_hash(
    texts: Sequence[Text], chooses: Chooses, share: float, least: int = 0
) -> tuple[list[bytes], list[bytes]]:
    """What of a part is trained on, and what is held out: the texts that are held out of the whole.

    So no run about another part, or about all, trains on them. A part of which nothing, or all, would be held out has
    the ends of its texts held out instead.
    """
    held, part = held_out(texts, share, least), part_of(texts, chooses)
    train = [text.content for text in part if text.name not in held]
    kept = [text.content for text in part if text.name in held]
    return (train, kept) if (train and kept) or len(part) == len(texts) else split_by_tail(part, share)


def is_source(name: str) -> bool:
    """Whether a relative path is a source file that belongs to the library itself."""
    *folders, file = name.split("/")
    is_hidden = any(part.startswith(".") for part in name.split("/"))
    return file.endswith(".py") and not (is_hidden or file.startswith("_sysconfigdata") or NOT_STDLIB & {*folders})


def split_by_hash(texts: Sequence[Text], share: float, least: int = 0) -> tuple[list[bytes], list[bytes]]:
    """Training and validation texts; the lowest hashes are held out: `share` of them, `least` bytes."""
    held = held_out(texts, share, least)
    train = [text.content for text in texts if text.name not in held]
    return train, [text.content for text in texts if text.name in held]


def held_out(texts: Sequence[Text], share: float, least: int = 0) -> set[str]:
    """The names of the texts that validate."""
    held: set[str] = set()
    size = 0
    for text in sorted(texts, key=lambda text: fraction(text.name)):
        if fraction(text.name) >= share and size >= least:
            break
        held.add(text.name)
        size += len(text.content)
    return held


def split_by_tail(texts: Sequence[Text], share: float) -> tuple[list[bytes], list[bytes]]:
    """Training and validation texts: the beginning and the end of each."""
    cuts = [(text.content, round(len(text.content) * (1 - share))) for text in texts]
    return [content[:cut] for content, cut in cuts], [content[cut:] for content, cut in cuts]


def fraction(name: str) -> float:
    """A relative path as a number in [0, 1) that no machine, version or other file changes."""
    return int.from_bytes(blake3(encode_name(name)).digest()[:6], "little") / 2**48


def assemble(texts: Sequence[Text], skipped: int, train: list[bytes], held: list[bytes]) -> Corpus:
    """The corpus of texts that have been split."""
    parts = (part for text in texts for part in (encode_name(text.name), text.content))
    return Corpus(join(train), join(held), digest("corpus", *parts), len(texts), skipped)


def join(contents: list[bytes]) -> Tensor:
    """One uint8 vector of all texts, each followed by the end-of-text byte."""
    joined = END_OF_TEXT.join([*contents, b""]) if contents else b""
    tensor: Tensor = torch.from_numpy(np.frombuffer(bytearray(joined), np.uint8))
    return tensor
