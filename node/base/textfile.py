"""Reads text files: UTF-8, or any Unicode encoding with a byte order mark, as on Windows.

An error names the file, the line, what is wrong there, and what to do.
"""

from __future__ import annotations

import codecs
import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from shoal.protocol.base.errors import LocalError

MARK = "\ufeff"  # byte order mark; in concatenated files also at the beginning of later lines
MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)  # UTF-32-LE begins as 16
FOREIGN = re.compile("[\udc00-\udcff]")  # the characters by which `MARKING` replaces undecodable bytes
MARKING = "shoal-marking"  # an error handler for codecs; unlike "surrogateescape" it takes any byte
AS_UTF8 = "save it as UTF-8, for example with `iconv -f latin1 -t utf-8`"
REMEDIES = {
    errno.EACCES: "give the user that runs Shoal the right to read it, or name others",
    errno.EPERM: "give the user that runs Shoal the right to read it, or name others",
    errno.ENOENT: "it is gone, or a link to nothing: bring it back or remove the link, and try again",
    errno.ELOOP: "its links lead in a circle: remove them",
}


def _mark(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "".join(chr(LOWEST + byte) for byte in error.object[error.start : error.end]), error.end


LOWEST = 0xDC00
codecs.register_error(MARKING, _mark)


def encoding_of(head: bytes) -> str:
    """The encoding of a text, by its first bytes; its decoder drops the byte order mark."""
    if not head.startswith(MARKS):
        return "utf-8"
    import json  # not at the top: most commands read no text

    return json.detect_encoding(head[:4].ljust(4, b" "))


def decoded(content: bytes, what: str) -> str:
    """Decode a text; LocalError, in which `what` names it, if it is not in its encoding."""
    text = content.decode(encoding_of(content), MARKING)
    if (found := FOREIGN.search(text)) is not None:
        line = text.count("\n", 0, found.start()) + 1
        raise LocalError(foreign(f"line {line} of {what}", found), code="not-text")
    return text


def checked(lines: Iterable[str], what: str) -> Iterator[str]:
    """Lines that were read with `MARKING`, without byte order marks; LocalError if one has undecodable bytes."""
    for number, line in enumerate(lines, start=1):
        if not line.isascii():
            if (found := FOREIGN.search(line)) is not None:
                raise LocalError(foreign(f"line {number} of {what}", found), code="not-text")
            line = line.removeprefix(MARK)
        yield line


def check_text(text: str, what: str) -> None:
    """LocalError if an argument, or a text from a pipe, contains undecodable bytes."""
    if (found := FOREIGN.search(text)) is not None:
        byte = f"a byte 0x{ord(found[0]) - LOWEST:02x}"
        raise LocalError(
            f"{what} is no text in UTF-8, because of {byte}: set the terminal, or save the file, to UTF-8",
            code="not-text",
        )


def foreign(where: str, found: re.Match[str]) -> str:
    """The sentence about an undecodable byte."""
    return f"{where} is no UTF-8 text, because of a byte 0x{ord(found[0]) - LOWEST:02x}: {AS_UTF8}"


def read_text(path: Path, what: str = "", limit: int | None = None) -> str:
    """A file's text; LocalError, in which `what` describes it, if it is unreadable or larger than `limit` bytes."""
    named = f"{what} {shown(path)}".strip()
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1 if limit is not None else -1)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not path.is_symlink():
            raise LocalError(
                f"cannot read {named}: there is no such file; check the path", code="unreadable"
            ) from error
        raise LocalError(unreadable(named, error), code="unreadable") from error
    if limit is not None and len(content) > limit:
        raise LocalError(f"{named} is larger than {limit >> 10:,} KiB", code="too-large")
    return decoded(content, named)


def parse_json(text: str, what: str, made: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Parse JSON; LocalError with the line if it is malformed.

    `made` turns the keys and values of each object into a value, or raises ValueError.
    """
    import json

    try:
        return json.loads(text, object_pairs_hook=made)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} of {what}"
        raise LocalError(f"{where} is not JSON: {error.msg} at its column {error.colno}", code="not-json") from error
    except (ValueError, RecursionError) as error:  # a number too long, nested too deeply, or what `made` refuses
        raise LocalError(f"{what} is not JSON that can be read: {error}", code="not-json") from error


def parse_table(text: str, what: str) -> dict[str, Any]:
    """Parse a JSON object; LocalError if the text is something else."""
    table = parse_json(text, what)
    if not isinstance(table, dict):
        raise LocalError(f"{what} is no table of settings: it must be a JSON object", code="not-json")
    return table


def unreadable(what: str, error: OSError) -> str:
    """The sentence about a file that cannot be read: why, and what to do."""
    remedy = REMEDIES.get(error.errno or 0, "")
    return f"cannot read {what}: {error.strerror or error}" + (f" ({remedy})" if remedy else "")


def shown(path: str | Path) -> str:
    """A path, which may contain any bytes, as printable text on one line."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
