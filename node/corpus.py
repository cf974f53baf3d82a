"""The text that a run learns from, as bytes, and the part of it that is never trained on.

- `stdlib`: the Python sources of the running interpreter's standard library, found by sysconfig: real text,
  about 12 MB, there on every machine. Tests are left out, because many installations come without them, and
  so are installed packages and the build's own `_sysconfigdata`, which are about the machine.
- `files`: what the user names: text files, and folders with all text files below them but hidden ones. A file
  that is not UTF-8 or holds a NUL is skipped and counted.

Texts are ordered by relative path and joined by NUL bytes, which no text holds: the NUL means "end of text".

Whole texts are held out for validation, chosen by the hash of their relative path: machines with slightly
different files (another Python version) never train on what another validates on. That needs many texts;
where the hash holds out less than half or more than twice the share that was asked for, as with a single
file, the tail of every text is held out instead. `files` has to be the same on every member (its digest is in
the manifest), so its members agree on which it is.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor

from shoal.node.manifest import DataSpec
from shoal.protocol.errors import LocalError
from shoal.protocol.ids import Digest, digest

NOT_STDLIB = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
STDLIB_SHARE = 0.1
STDLIB_LEAST = 1 << 20  # bytes of validation text, however small the library is
FILES_SHARE = 0.05
END_OF_TEXT = b"\0"


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """Training and validation bytes (uint8 vectors), and what they were made of."""

    train: Tensor
    validation: Tensor
    digest: Digest  # of all texts and their relative paths
    files: int
    skipped: int  # files that were not text


@dataclass(frozen=True, slots=True)
class Text:
    """One file: its path relative to the folder it was found in, with forward slashes, and its bytes."""

    name: str
    content: bytes


def load_corpus(spec: DataSpec, paths: Sequence[Path] = ()) -> Corpus:
    """The corpus of a manifest; `paths` are where this machine keeps the text of `files`."""
    if spec.name == "stdlib":
        return stdlib_corpus()
    corpus = files_corpus(paths)
    if spec.digest and spec.digest != corpus.digest.hex():
        raise LocalError("the text given to --data is not the text that the run is about (its digest differs)")
    return corpus


def stdlib_corpus(root: Path | None = None) -> Corpus:
    """The sources of the standard library below `root`, by default the running interpreter's."""
    root = root or Path(sysconfig.get_path("stdlib"))
    found = ((name, path) for name, path in walk(root) if is_source(name))
    texts, skipped = read_texts(found)
    if sum(len(text.content) for text in texts) < 4 * STDLIB_LEAST:
        raise LocalError(f"this Python has no standard library sources in {root}; name your own text with --data")
    return assemble(texts, skipped, *split_by_hash(texts, STDLIB_SHARE, STDLIB_LEAST))


def files_corpus(paths: Sequence[Path]) -> Corpus:
    """The text files among `paths` and below the folders among them."""
    texts, skipped = read_texts(each for path in paths for each in walk(path))
    total = sum(len(text.content) for text in texts)
    if not total:
        raise LocalError(f"no text in {', '.join(map(str, paths)) or 'the data'}: {skipped} files are not text")
    train, held = split_by_hash(texts, FILES_SHARE)
    if not FILES_SHARE / 2 <= sum(map(len, held)) / total <= FILES_SHARE * 2:
        train, held = split_by_tail(texts, FILES_SHARE)
    return assemble(texts, skipped, train, held)


def is_source(name: str) -> bool:
    """Whether a relative path is a source file that belongs to the library itself."""
    *folders, file = name.split("/")
    return file.endswith(".py") and not file.startswith("_sysconfigdata") and NOT_STDLIB.isdisjoint(folders)


def walk(path: Path) -> Iterator[tuple[str, Path]]:
    """Relative name and path of each regular, unhidden file below a folder, or of the one file itself."""
    if path.is_file():
        yield path.name, path
        return
    if not path.is_dir():
        raise LocalError(f"{path} is neither a file nor a folder")
    for folder, below, files in os.walk(path):
        below[:] = [name for name in below if not name.startswith(".")]
        for name in files:
            file = Path(folder, name)
            if not name.startswith(".") and file.is_file():
                yield file.relative_to(path).as_posix(), file


def read_texts(found: Iterable[tuple[str, Path]]) -> tuple[list[Text], int]:
    """The files that are text, in the order of their names, and how many are not."""
    texts, skipped = [], 0
    for name, path in found:
        try:
            content = path.read_bytes()
            content.decode("utf-8")
        except UnicodeDecodeError:
            skipped += 1
            continue
        except OSError as error:
            raise LocalError(f"cannot read {path}: {error}") from error
        if END_OF_TEXT in content:
            skipped += 1
        else:
            texts.append(Text(name, content))
    return sorted(texts, key=lambda text: (text.name, text.content)), skipped


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
    return int.from_bytes(blake3(name.encode("utf-8", "surrogateescape")).digest()[:6], "little") / 2**48


def assemble(texts: Sequence[Text], skipped: int, train: list[bytes], held: list[bytes]) -> Corpus:
    """The corpus of texts that have been split."""
    parts = (part for text in texts for part in (text.name.encode("utf-8", "surrogateescape"), text.content))
    return Corpus(join(train), join(held), digest("corpus", *parts), len(texts), skipped)


def join(contents: list[bytes]) -> Tensor:
    """One uint8 vector of all texts, each followed by the end-of-text byte."""
    joined = END_OF_TEXT.join([*contents, b""]) if contents else b""
    tensor: Tensor = torch.from_numpy(np.frombuffer(bytearray(joined), np.uint8))
    return tensor
