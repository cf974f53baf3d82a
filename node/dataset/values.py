"""What stands in the columns of a table's row: its text, and a word or a number that says of which domain it is."""

from __future__ import annotations

import datetime
import decimal
import math
import re
from collections.abc import Iterable
from itertools import islice
from typing import Any

from shoal.protocol.errors import LocalError

MAX_NAMES, MAX_NAME = 20, 60  # names of columns in a message, and characters of each
MAX_DOMAIN = 64  # characters of a domain in a row's name
OTHER = "other"  # the domain of a row that does not say any
NUL = "\0"
HALVES = re.compile("[\ud800-\udfff]")  # of characters beyond 16 bits, which JSON can write one by one


def text_of(value: Any, column: str, where: str) -> str:
    """The text in a row's column, empty if it is null; LocalError if it is anything else. `where` names the row."""
    if value is None or isinstance(value, str):
        return value or ""
    if (text := _decoded(value)) is not None:  # as some write text into parquet
        return text
    what = f"the column {column!r} in {where} holds {kind(value)}"
    raise LocalError(f"{what}, and no text: name a column of text, or write text there")


def why_no_text(text: str, column: str) -> str:
    """Why a row is left out, as a predicate; empty if it has text."""
    if not text:
        return f"has no text in {column!r}"
    if NUL in text:
        return "holds a NUL, which no text does"
    return "holds half of a character, which no text does" if HALVES.search(text) else ""


def domain_of(value: Any, column: str, where: str) -> str:
    """As the row calls its domain, empty if it does not; LocalError if that is neither a word nor a number.

    A whole number is one however it is written: pandas writes 1 as 1.0 where another row has none.
    """
    if isinstance(value, float):
        value = int(value) if value.is_integer() else None if math.isnan(value) else value
    if value is None:
        return ""
    if isinstance(value, str | int | float | decimal.Decimal | datetime.date | datetime.time):
        return str(value)
    if (word := _decoded(value)) is not None:
        return word
    what = f"the column {column!r} in {where} holds {kind(value)}"
    raise LocalError(f"{what}, and no word or number: name a column of those for the domain")


def name_of(domain: str) -> str:
    """A domain as one part of a path."""
    return re.sub(r"[^\w.+-]+", "_", domain)[:MAX_DOMAIN].strip(".") or OTHER


def kind(value: Any) -> str:
    """What a value is, in words."""
    if isinstance(value, dict):
        return f"an object of {listed(map(repr, value))}"
    kinds: dict[type, str] = {bool: "a truth value", int: "a number", float: "a number", list: "a list", bytes: "bytes"}
    return kinds.get(type(value), f"a {type(value).__name__}")


def listed(names: Iterable[Any]) -> str:
    """A file's own names, as many and as much of each as a person may want to read."""
    first = [
        name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}..." for name in map(str, islice(names, MAX_NAMES + 1))
    ]
    return ", ".join([*first[:MAX_NAMES], *(["..."] if len(first) > MAX_NAMES else [])]) or "none"


def _decoded(value: Any) -> str | None:
    """Bytes that are UTF-8; None: it is something else."""
    if not isinstance(value, bytes):
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
