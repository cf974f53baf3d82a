"""The text that a run learns from, as bytes, and the part of it that is never trained on.

- `stdlib`: the Python sources of the running interpreter's standard library, found by sysconfig: real text,
  about 12 MB, there on every machine. Tests are left out, because many installations come without them, and
  so are installed packages and the build's own `_sysconfigdata`, which are about the machine.
- `files`: what the user names: text files, and folders with all text files below them but hidden ones; or one packed
  file of them, as members give it to each other. What is not text (node/dataset/texts.py) is skipped and counted.

Texts are joined by NUL bytes, which no text holds: the NUL means "end of text". A token is a byte: no tokenizer.

Whole texts are held out for validation, chosen by the hash of their relative path: machines with slightly
different files (another Python version) never train on what another validates on. That needs many texts;
where the hash holds out less than half or more than twice the share that was asked for, as with a single
file, the tail of every text is held out instead. `files` has to be the same on every member (its digest is in
the manifest), so its members agree on which it is.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor

from shoal.node.dataset.pack import encode_name, is_pack, read_pack
from shoal.node.dataset.texts import END_OF_TEXT, Text, check_any, find, read_texts, walk
from shoal.node.manifest import DataSpec
from shoal.protocol.errors import LocalError
from shoal.protocol.ids import Digest, digest

NOT_STDLIB = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
STDLIB_SHARE = 0.1
STDLIB_LEAST = 1 << 20  # bytes of validation text, however small the library is
FILES_SHARE = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """Training and validation bytes (uint8 vectors), and what they were made of."""

    train: Tensor
    validation: Tensor
    digest: Digest  # of all texts and their relative paths
    files: int
    skipped: int  # files that were not text


def load_corpus(spec: DataSpec, paths: Sequence[Path] = ()) -> Corpus:
    """The corpus of a manifest; `paths` are where this machine keeps the text of `files`, or its packed file."""
    if spec.name == "stdlib":
        return stdlib_corpus()
    is_packed = len(paths) == 1 and is_pack(paths[0])
    corpus = texts_corpus(read_pack(paths[0]), 0) if is_packed else files_corpus(paths)
    if spec.digest and spec.digest != corpus.digest.hex():
        where = paths[0] if is_packed else "the text given to --data"
        raise LocalError(f"{where} is not the text that the run is about (its digest differs)")
    return corpus


def stdlib_corpus(root: Path | None = None) -> Corpus:
    """The sources of the standard library below `root`, by default the running interpreter's."""
    root = root or Path(sysconfig.get_path("stdlib"))
    found = [(name, path) for name, path in walk(root) if is_source(name)]
    texts = list(read_texts(found))
    if sum(len(text.content) for text in texts) < 4 * STDLIB_LEAST:
        raise LocalError(f"this Python has no standard library sources in {root}; name your own text with --data")
    return assemble(texts, len(found) - len(texts), *split_by_hash(texts, STDLIB_SHARE, STDLIB_LEAST))


def files_corpus(paths: Sequence[Path]) -> Corpus:
    """The text files among `paths` and below the folders among them."""
    found = find(paths)
    texts = list(read_texts(found))
    check_any(sum(len(text.content) for text in texts), paths, len(found) - len(texts))
    return texts_corpus(texts, len(found) - len(texts))


def texts_corpus(texts: Sequence[Text], skipped: int) -> Corpus:
    """The corpus of texts that are in order, whoever packed them."""
    total = max(1, sum(len(text.content) for text in texts))
    train, held = split_by_hash(texts, FILES_SHARE)
    if not FILES_SHARE / 2 <= sum(map(len, held)) / total <= FILES_SHARE * 2:
        train, held = split_by_tail(texts, FILES_SHARE)
    return assemble(texts, skipped, train, held)


def is_source(name: str) -> bool:
    """Whether a relative path is a source file that belongs to the library itself."""
    *folders, file = name.split("/")
    return file.endswith(".py") and not file.startswith("_sysconfigdata") and NOT_STDLIB.isdisjoint(folders)


def split_by_hash(texts: Sequence[Text], share: float, least: int = 0) -> tuple[list[bytes], list[bytes]]:
    """Training and validation texts; the lowest hashes are held out: `share` of them, `least` bytes."""
    held: set[str] = set()
    size = 0
    for text in sorted(texts, key=lambda text: fraction(text.name)):
        if fraction(text.name) >= share and size >= least:
            break
        held.add(text.name)
        size += len(text.content)
    train = [text.content for text in texts if text.name not in held]
    return train, [text.content for text in texts if text.name in held]


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
