"""Explains in one sentence, to the person who wrote a document, why it does not fit its schema.

The sentence names the key, what is wrong with it and, for an unknown key, the nearest one that exists.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, Tag, ValidationError
from pydantic_core import ErrorDetails

MAX_KEY = 80  # characters of a wrong key that the sentence repeats
UNKNOWN_NAME = "unknown_name"  # error type for an unknown `name` in a table whose `name` chooses its schema


def explain(error: ValidationError, spec: type[BaseModel]) -> str:
    """What is wrong: an unknown key, which often explains a missing one, or else the first error in the document."""
    first, where = _first(error), key_of(error, spec)[:MAX_KEY]
    if first["type"] == "extra_forbidden":
        known = _known_keys(spec)
        return f"unknown key '{where}'; the nearest known key is '{_nearest(where, known)}'"
    what = first["msg"].removeprefix("Value error, ")
    return f"'{where}': {what}" if where else what


def key_of(error: ValidationError, spec: type[BaseModel]) -> str:
    """The dotted key that `explain` is about; empty if the whole document is meant."""
    first = _first(error)
    return ".".join([*_written(first["loc"], spec), *(["name"] if first["type"] == UNKNOWN_NAME else [])])


def _first(error: ValidationError) -> ErrorDetails:
    return min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")


def _written(loc: Sequence[int | str], spec: type[BaseModel]) -> Iterator[str]:
    """The parts of a key as the person wrote it, without pydantic's tags for the schema chosen for a table."""
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
    """(tag, schema) for each schema that a field's table may have; the tag is "" if there is no choice."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield "", annotation
    for member in get_args(annotation):
        if isinstance(member, type) and issubclass(member, BaseModel):  # optional, or in a list
            yield "", member
        tag = next((each.tag for each in getattr(member, "__metadata__", ()) if isinstance(each, Tag)), None)
        if tag is not None:
            yield tag, get_args(member)[0]


def _known_keys(spec: type[BaseModel], prefix: str = "") -> list[str]:
    """All dotted keys of the schema, those of tables included."""
    keys = []
    for name, field in spec.model_fields.items():
        keys.append(prefix + name)
        for _, table in _schemas(field.annotation):
            keys += _known_keys(table, f"{prefix}{name}.")
    return keys


def _nearest(wrong: str, known: list[str]) -> str:
    """A similar key of the same table, or else one of another table, or else the most similar of all."""
    table, _, leaf = wrong.rpartition(".")
    beside = {key.rpartition(".")[2]: key for key in known if key.rpartition(".")[0] == table}
    anywhere = {key.rpartition(".")[2]: key for key in known}
    for choice in (beside, anywhere):
        if close := difflib.get_close_matches(leaf, choice, n=1):
            return choice[close[0]]
    return difflib.get_close_matches(wrong, known, n=1, cutoff=0.0)[0]
