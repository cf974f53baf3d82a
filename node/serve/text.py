"""Text as a model's tokens, and tokens as text that never ends in half a character.

Without a tokenizer a token is a byte (tokens.py, corpus.py). With one, what a token stands for depends on those before
it: a character may be split over several, and the library gives U+FFFD for what is not whole yet. At most the last
three characters of a text can be that, as a character in UTF-8 has at most four bytes; so they are held back.
"""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Any, Protocol

from shoal.node.models import extra
from shoal.protocol.errors import LocalError

BYTES = 256
END_BYTE = 0  # corpus.py ends each text with it
HOLE = "\ufffd"
MOST_HOLES = 3
WINDOW = 16  # tokens that are decoded again with each new one, before the window is moved
KEPT = 4  # tokens of it that stay
MAX_FILE = 256 << 20


class Writer(Protocol):
    """Tokens one by one, and the text that each adds."""

    def push(self, token: int) -> str:
        """What is whole now, and was not before; perhaps nothing."""
        ...

    def flush(self) -> str:
        """The rest, with U+FFFD for what never became a character."""
        ...


class Codec(Protocol):
    """The tokens of one model."""

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

    def writer(self) -> Writer:
        """For one text."""
        ...

    def shown(self, token: int) -> str:
        """A token by itself."""
        ...


class Bytes:
    """Tokens 0 to 255 are bytes, and 0 ends a text."""

    size = BYTES
    ends = frozenset({END_BYTE})

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """See Codec."""
        return list(text.encode("utf-8", "replace"))

    def writer(self) -> Writer:
        """See Codec."""
        return ByteWriter()

    def shown(self, token: int) -> str:
        """See Codec."""
        return bytes([token]).decode("utf-8", "backslashreplace")


class ByteWriter:
    """See Writer."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """See Writer."""
        return self._decoder.decode(bytes([token]))

    def flush(self) -> str:
        """See Writer."""
        return self._decoder.decode(b"", True)


class Tokenized:
    """The tokens of a tokenizer.json."""

    def __init__(self, content: bytes, ends: frozenset[int], *, special: bool, what: str) -> None:
        """`special`: whether prompts begin as the file says; `what` names the file. LocalError unless it is one."""
        try:
            self.tokens: Any = extra.tokenizers().Tokenizer.from_str(content.decode())
        except LocalError:
            raise
        except Exception as error:  # the library's own, of no narrower type
            raise LocalError(f"{what} is no tokenizer: {error}") from error
        self.tokens.no_padding()
        self.tokens.no_truncation()
        self.size: int = 1 + max(self.tokens.get_vocab(with_added_tokens=True).values(), default=-1)
        self.ends, self._special = ends, special

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """See Codec."""
        whole = text.encode("utf-8", "replace").decode()  # JSON may hold halves of characters
        return list(self.tokens.encode(whole, add_special_tokens=special and self._special).ids)

    def writer(self) -> Writer:
        """See Codec."""
        return TokenWriter(self.tokens)

    def shown(self, token: int) -> str:
        """See Codec."""
        return str(self.tokens.decode([token], skip_special_tokens=False))


class TokenWriter:
    """See Writer. It decodes a window of the last tokens, which moves where its end is surely whole."""

    def __init__(self, tokens: Any) -> None:
        self._tokens = tokens
        self._window: list[int] = []
        self._given = 0  # characters of the window's text

    def push(self, token: int) -> str:
        """See Writer."""
        self._window.append(token)
        text = self._text(self._window)
        holes = len(text) - len(text.rstrip(HOLE))
        whole = text[: len(text) - min(holes, MOST_HOLES)]
        out, self._given = whole[self._given :], max(self._given, len(whole))
        if len(self._window) > WINDOW and not holes:
            self._move(text)
        return out

    def flush(self) -> str:
        """See Writer."""
        text = self._text(self._window)
        out, self._given = text[self._given :], max(self._given, len(text))
        return out

    def _text(self, tokens: list[int]) -> str:
        return str(self._tokens.decode(tokens))

    def _move(self, text: str) -> None:
        """Forget all but the last tokens, if they mean the same without those before them."""
        tail = self._window[-KEPT:]
        short = self._text(tail)
        if short and HOLE not in short and text.endswith(short):
            self._window, self._given = tail, len(short)


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
