"""Vocabularies for generation: text to tokens, and tokens to text as they come. Tokens are bytes or a tokenizer's.

A `Detokenizer` makes text of tokens one by one, and never gives half a character. With a tokenizer, the text of a token
depends on the tokens before it: a character may be split over several tokens, and a leading space may be dropped. So a
window of the last tokens is decoded again with each new token. The library gives U+FFFD for an incomplete character. At
most the last three characters can be incomplete, as UTF-8 has at most four bytes per character; they are held back.
Some tokenizers have a token for each byte, for text outside of their vocabulary. While any character of a sequence of
such tokens is incomplete, the library gives U+FFFD for the whole sequence; so these sequences are decoded here.

Training has its own `Tokenizer` (tokens.py), which makes tensors of whole texts.
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
INCOMPLETE = "\ufffd"
MAX_INCOMPLETE = 3
WINDOW = 16  # tokens, before the window is moved
KEPT = 4  # tokens of it that stay
DOT = ord(".")


class Detokenizer(Protocol):
    """Makes text of tokens that come one by one."""

    def push(self, token: int) -> str:
        """The text that this token completes; may be empty."""

    def flush(self) -> str:
        """The rest of the text, with U+FFFD for incomplete characters."""


class ByteDetokenizer:
    """For tokens that are bytes."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """See Detokenizer."""
        return self._decoder.decode(bytes([token]))

    def flush(self) -> str:
        """See Detokenizer."""
        return self._decoder.decode(b"", True)


class TokenizerDetokenizer:
    """For the tokens of a tokenizer."""

    def __init__(self, tokens: Any, numbers: Mapping[int, int], before: Sequence[int]) -> None:
        """`tokens` is the library's tokenizer; `numbers` maps its byte tokens to bytes, or is empty.

        `before` are the tokens that the text continues.
        """
        self._tokens, self._bytes = tokens, numbers
        self._dot = [token for token, byte in numbers.items() if byte == DOT]  # stands for the text before, in a window
        self._run: ByteDetokenizer | None = None
        tail = list(before[-KEPT:])
        last = max((place for place, token in enumerate(tail) if token in numbers), default=-1)
        self._look_at(tail if last < 0 else self._dot + tail[last + 1 :])

    def push(self, token: int) -> str:
        """See Detokenizer."""
        if token in self._bytes:
            held = self._rest() if self._run is None else ""
            self._run = self._run or ByteDetokenizer()
            return held + self._run.push(self._bytes[token])
        out = ""
        if self._run is not None:
            out, self._run = self._run.flush(), None
            self._look_at(self._dot)
        return out + self._next(token)

    def flush(self) -> str:
        """See Detokenizer."""
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
            if short and INCOMPLETE not in short and text.endswith(short):  # its text does not depend on those before
                self._look_at(tail)
        return out

    def _rest(self) -> str:
        text = self._text(self._window)
        out, self._given = text[self._given :], max(self._given, len(text))
        return out

    def _text(self, tokens: list[int]) -> str:
        return str(self._tokens.decode(tokens))


def _whole(text: str) -> str:
    """The text without characters at its end that may be incomplete."""
    incomplete = len(text) - len(text.rstrip(INCOMPLETE))
    return text[: len(text) - min(incomplete, MAX_INCOMPLETE)]


def byte_tokens(tokens: Any) -> dict[int, int]:
    """The byte that each byte token of a tokenizer stands for; empty unless it has all 256."""
    named = {tokens.token_to_id(f"<0x{byte:02X}>"): byte for byte in range(256)}
    return {} if None in named else named


class Vocabulary(Protocol):
    """The tokens of one model, and how text becomes tokens and tokens text."""

    @property
    def size(self) -> int:
        """Number of tokens that have a meaning; the model may have more."""

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end a text."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The text's tokens; with `special`, also the special tokens with which the tokenizer begins a text."""

    def detokenizer(self, before: Sequence[int] = ()) -> Detokenizer:
        """A detokenizer for one text that continues these tokens."""

    def shown(self, token: int) -> str:
        """The text of a single token, for people."""


class ByteVocabulary:
    """Tokens 0 to 255 are bytes, and 0 ends a text."""

    size = BYTES
    ends = frozenset({END_BYTE})

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """See Vocabulary."""
        return list(text.encode())

    def detokenizer(self, before: Sequence[int] = ()) -> Detokenizer:
        """See Vocabulary."""
        return ByteDetokenizer()

    def shown(self, token: int) -> str:
        """See Vocabulary."""
        return bytes([token]).decode("utf-8", "backslashreplace")


class TokenizerVocabulary:
    """The tokens of a tokenizer.json."""

    def __init__(self, content: bytes, ends: frozenset[int], *, special: bool, what: str) -> None:
        """`special`: whether prompts begin with the file's special tokens; `what` names the file in a LocalError."""
        self.tokens, self.size = load_tokenizer(content, what, f"{what} is no tokenizer")
        self.ends, self._special = ends, special
        self._bytes = byte_tokens(self.tokens)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """See Vocabulary."""
        return list(self.tokens.encode(text, add_special_tokens=special and self._special).ids)

    def detokenizer(self, before: Sequence[int] = ()) -> Detokenizer:
        """See Vocabulary."""
        return TokenizerDetokenizer(self.tokens, self._bytes, before)

    def shown(self, token: int) -> str:
        """See Vocabulary."""
        return str(self.tokens.decode([token], skip_special_tokens=False))


def load_tokenizer(content: bytes, what: str, problem: str) -> tuple[Any, int]:
    """The library's tokenizer from a tokenizer.json, and the number after its highest token.

    `what` names the file. Raises a LocalError that begins with `problem` if it is invalid. Nothing in it is executed.
    """
    try:
        tokens: Any = extra.tokenizers().Tokenizer.from_str(decoded(content, what))
    except LocalError:
        raise
    except Exception as error:  # the library raises no narrower type
        raise LocalError(f"{problem}: {error}", code="other-tokenizer") from error
    tokens.no_padding()
    tokens.no_truncation()
    return tokens, 1 + max(tokens.get_vocab(with_added_tokens=True).values(), default=-1)


def read_tokenizer(path: Path) -> bytes:
    """The content of a tokenizer's file; LocalError if it cannot be read, or is larger than MAX_FILE."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE + 1)
    except OSError as error:
        raise LocalError(f"cannot read the tokenizer {path}: {error.strerror}", code="tokenizer-missing") from error
    if len(content) > MAX_FILE:
        raise LocalError(f"{path} is no tokenizer: it has more than {MAX_FILE >> 20} MiB", code="other-tokenizer")
    return content
