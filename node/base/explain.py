"""Why a document does not fit its schema, in one sentence for the person who wrote it.

The sentence names the key, what is wrong with it and, for an unknown key, the nearest one that exists.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, Tag, ValidationError
from pydantic_core import ErrorDetails

MAX_KEY = 80  # characters of a wrong key that are worth repeating
UNKNOWN_NAME = "unknown_name"  # the type of errors about a table whose name chooses its keys


def explain(error: ValidationError, spec: type[BaseModel]) -> str:
    """An unknown key (it often explains a missing one), else the first thing that is wrong with `spec`'s data."""
    first, where = _first(error), key_of(error, spec)[:MAX_KEY]
    if first["type"] == "extra_forbidden":
        known = _known_keys(spec)
        return f"unknown key '{where}'; the nearest known key is '{_nearest(where, known)}'"
    what = first["msg"].removeprefix("Value error, ")
    return f"'{where}': {what}" if where else what


def key_of(error: ValidationError, spec: type[BaseModel]) -> str:
    """The key that `explain` is about, with its tables before it; empty if it is about all of the document."""
    first = _first(error)
    return ".".join([*_written(first["loc"], spec), *(["name"] if first["type"] == UNKNOWN_NAME else [])])


def _first(error: ValidationError) -> ErrorDetails:
    return min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")


def _written(loc: Sequence[int | str], spec: type[BaseModel]) -> Iterator[str]:
    """The parts of a key as a person has written it: without which of several schemas was chosen for a table."""
    table: type[BaseModel] | None = spec
    choices: dict[str, type[BaseModel]] = {}
    for part in loc:
        if str(part) in choices:
            table, choices = choices[str(part)], {}
            continue
        yield str(part)
        field = table.model_fields.get(str(part)) if table is not None else None
        choices = dict(_schemas(field.annotation)) if field is not None else {}
        table = choices.pop("", None)


def _schemas(annotation: Any) -> Iterator[tuple[str, type[BaseModel]]]:
    """The schemas that a field's table may have, by their tags; "" where there is but one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield "", annotation
    for member in get_args(annotation):
        if isinstance(member, type) and issubclass(member, BaseModel):  # one that may be missing, or of a list
            yield "", member
        tag = next((each.tag for each in getattr(member, "__metadata__", ()) if isinstance(each, Tag)), None)
        if tag is not None:
            yield tag, get_args(member)[0]


def _known_keys(spec: type[BaseModel], prefix: str = "") -> list[str]:
    """Every key of the schema, dotted: tables and what is in them."""
    keys = []
    for name, field in spec.model_fields.items():
        keys.append(prefix + name)
        for _, table in _schemas(field.annotation):
            keys += _known_keys(table, f"{prefix}{name}.")
    return keys


def _nearest(wrong: str, known: list[str]) -> str:
    """A key of the same table that looks alike, or the key in another table, or the most similar of all."""
    table, _, leaf = wrong.rpartition(".")
    beside = {key.rpartition(".")[2]: key for key in known if key.rpartition(".")[0] == table}
    anywhere = {key.rpartition(".")[2]: key for key in known}
    for choice in (beside, anywhere):
        if close := difflib.get_close_matches(leaf, choice, n=1):
            return choice[close[0]]
    return difflib.get_close_matches(wrong, known, n=1, cutoff=0.0)[0]
