"""Text as a model's tokens, and back, for what is generated: bytes, unless there is a tokenizer.

A `Writer` makes text of tokens as they come, and never ends in half a character. What a token of a tokenizer stands
for depends on those before it: a character may be split over several, and a space at the beginning may be left out. So
a window of the last tokens is decoded again with each new one. The library gives U+FFFD for what is not whole yet: at
most the last three characters can be that, as a character in UTF-8 has at most four bytes, and they are held back.
Some tokenizers have a token for each byte, for what is no word; the library makes all of a run of these U+FFFD while
any of it is not whole. So such runs are decoded here.

Training has its own `Tokenizer` (tokens.py), which makes whole texts tensors.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from shoal.node.base import extra
from shoal.node.base.textfile import decoded
from shoal.protocol.base.errors import LocalError

BYTES = 256
END_BYTE = 0  # corpus.py ends each text with it
MAX_FILE = 256 << 20
HOLE = "\ufffd"
MOST_HOLES = 3
WINDOW = 16  # tokens, before the window is moved
KEPT = 4  # tokens of it that stay
DOT = ord(".")


class Writer(Protocol):
    """Tokens one by one, and the text that each adds."""

    def push(self, token: int) -> str:
        """What is whole now, and was not before; perhaps nothing."""
        ...

    def flush(self) -> str:
        """The rest, with U+FFFD for what never became a character."""
        ...


class ByteWriter:
    """Of tokens that are bytes."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """See Writer."""
        return self._decoder.decode(bytes([token]))

    def flush(self) -> str:
        """See Writer."""
        return self._decoder.decode(b"", True)


class TokenWriter:
    """Of a tokenizer's tokens."""

    def __init__(self, tokens: Any, numbers: Mapping[int, int], before: Sequence[int]) -> None:
        """`tokens` is the library's tokenizer, `numbers` its byte tokens, if it has all of them, with their bytes.

        `before` are the tokens that the text goes on from.
        """
        self._tokens, self._bytes = tokens, numbers
        self._dot = [token for token, byte in numbers.items() if byte == DOT]  # stands for what was before a run's end
        self._run: ByteWriter | None = None
        tail = list(before[-KEPT:])
        last = max((place for place, token in enumerate(tail) if token in numbers), default=-1)
        self._look_at(tail if last < 0 else self._dot + tail[last + 1 :])

    def push(self, token: int) -> str:
        """See Writer."""
        if token in self._bytes:
            held = self._rest() if self._run is None else ""
            self._run = self._run or ByteWriter()
            return held + self._run.push(self._bytes[token])
        out = ""
        if self._run is not None:
            out, self._run = self._run.flush(), None
            self._look_at(self._dot)
        return out + self._next(token)

    def flush(self) -> str:
        """See Writer."""
        return self._rest() if self._run is None else self._run.flush()

    def _look_at(self, window: list[int]) -> None:
        self._window = window
        self._given = len(_whole(self._text(window)))

    def _next(self, token: int) -> str:
        self._window = [*self._window, token]
        text = self._text(self._window)
        whole = _whole(text)
        out, self._given = whole[self._given :], max(self._given, len(whole))
        if len(self._window) > WINDOW and len(whole) == len(text):
            tail = self._window[-KEPT:]
            short = self._text(tail)
            if short and HOLE not in short and text.endswith(short):  # it means the same without those before it
                self._look_at(tail)
        return out

    def _rest(self) -> str:
        text = self._text(self._window)
        out, self._given = text[self._given :], max(self._given, len(text))
        return out

    def _text(self, tokens: list[int]) -> str:
        return str(self._tokens.decode(tokens))


def _whole(text: str) -> str:
    """Without what may still become a character."""
    holes = len(text) - len(text.rstrip(HOLE))
    return text[: len(text) - min(holes, MOST_HOLES)]


def byte_tokens(tokens: Any) -> dict[int, int]:
    """The byte that each byte token of a tokenizer stands for; empty unless it has all 256."""
    named = {tokens.token_to_id(f"<0x{byte:02X}>"): byte for byte in range(256)}
    return {} if None in named else named


class Vocabulary(Protocol):
    """The tokens of one model, and how text becomes tokens and tokens text."""

    @property
    def size(self) -> int:
        """Tokens from here on stand for nothing, although the model may know them."""
        ...

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end a text."""
        ...

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Its tokens; with `special`, also those that the tokenizer begins a text with."""
        ...

    def writer(self, before: Sequence[int] = ()) -> Writer:
        """For one text, which goes on from these tokens."""
        ...

    def shown(self, token: int) -> str:
        """A token by itself."""
        ...


class Bytes:
    """Tokens 0 to 255 are bytes, and 0 ends a text."""

    size = BYTES
    ends = frozenset({END_BYTE})

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """See Vocabulary."""
        return list(text.encode())

    def writer(self, before: Sequence[int] = ()) -> Writer:
        """See Vocabulary."""
        return ByteWriter()

    def shown(self, token: int) -> str:
        """See Vocabulary."""
        return bytes([token]).decode("utf-8", "backslashreplace")


class Tokenized:
    """The tokens of a tokenizer.json."""

    def __init__(self, content: bytes, ends: frozenset[int], *, special: bool, what: str) -> None:
        """`special`: whether prompts begin as the file says; `what` names the file. LocalError unless it is one."""
        self.tokens, self.size = opened(content, what, f"{what} is no tokenizer")
        self.ends, self._special = ends, special
        self._bytes = byte_tokens(self.tokens)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """See Vocabulary."""
        return list(self.tokens.encode(text, add_special_tokens=special and self._special).ids)

    def writer(self, before: Sequence[int] = ()) -> Writer:
        """See Vocabulary."""
        return TokenWriter(self.tokens, self._bytes, before)

    def shown(self, token: int) -> str:
        """See Vocabulary."""
        return str(self.tokens.decode([token], skip_special_tokens=False))


def opened(content: bytes, what: str, problem: str) -> tuple[Any, int]:
    """The library's tokenizer of a tokenizer.json, and from which number on tokens stand for nothing.

    `what` names the file; LocalError, which begins with `problem`, unless it is one. Nothing in it is executed.
    """
    try:
        tokens: Any = extra.tokenizers().Tokenizer.from_str(decoded(content, what))
    except LocalError:
        raise
    except Exception as error:  # the library's own, of no narrower type
        raise LocalError(f"{problem}: {error}") from error
    tokens.no_padding()
    tokens.no_truncation()
    return tokens, 1 + max(tokens.get_vocab(with_added_tokens=True).values(), default=-1)


def read_tokenizer(path: Path) -> bytes:
    """A file's content; LocalError if it cannot be read, or is no tokenizer's size."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE + 1)
    except OSError as error:
        raise LocalError(f"cannot read the tokenizer {path}: {error.strerror}") from error
    if len(content) > MAX_FILE:
        raise LocalError(f"{path} is no tokenizer: it has more than {MAX_FILE >> 20} MiB")
    return content
