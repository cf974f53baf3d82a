"""Text as a model's tokens, and back: bytes, unless there is a tokenizer (tokens.py, corpus.py)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from shoal.node.models import extra
from shoal.node.serve.writers import ByteWriter, TokenWriter, Writer, byte_tokens
from shoal.node.textfile import decoded
from shoal.protocol.errors import LocalError

BYTES = 256
END_BYTE = 0  # corpus.py ends each text with it
MAX_FILE = 256 << 20


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
        """See Codec."""
        return list(text.encode())

    def writer(self, before: Sequence[int] = ()) -> Writer:
        """See Codec."""
        return ByteWriter()

    def shown(self, token: int) -> str:
        """See Codec."""
        return bytes([token]).decode("utf-8", "backslashreplace")


class Tokenized:
    """The tokens of a tokenizer.json."""

    def __init__(self, content: bytes, ends: frozenset[int], *, special: bool, what: str) -> None:
        """`special`: whether prompts begin as the file says; `what` names the file. LocalError unless it is one."""
        try:
            self.tokens: Any = extra.tokenizers().Tokenizer.from_str(decoded(content, what))
        except LocalError:
            raise
        except Exception as error:  # the library's own, of no narrower type
            raise LocalError(f"{what} is no tokenizer: {error}") from error
        self.tokens.no_padding()
        self.tokens.no_truncation()
        self.size: int = 1 + max(self.tokens.get_vocab(with_added_tokens=True).values(), default=-1)
        self.ends, self._special = ends, special
        self._bytes = byte_tokens(self.tokens)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """See Codec."""
        return list(self.tokens.encode(text, add_special_tokens=special and self._special).ids)

    def writer(self, before: Sequence[int] = ()) -> Writer:
        """See Codec."""
        return TokenWriter(self.tokens, self._bytes, before)

    def shown(self, token: int) -> str:
        """See Codec."""
        return str(self.tokens.decode([token], skip_special_tokens=False))


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
