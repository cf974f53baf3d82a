"""Explains in one sentence, to the person who wrote a document, why it does not fit its schema.

The sentence names the key, what was given and what is allowed; for an unknown key, the nearest one that exists.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from shoal.node.base.keys import allowed, bare, schemas, value

MAX_KEY = 80  # characters of a wrong key that the sentence repeats
MAX_GIVEN = 40  # characters of a wrong value
UNKNOWN_NAME = "unknown_name"  # error type for an unknown `name` in a table whose `name` chooses its schema
OWN_WORDS = ("value_error", "assertion_error")  # types of errors that a schema has raised with a sentence of its own


@dataclass(frozen=True, slots=True)
class _Place:
    """A key of a document, and what its schema says about it."""

    key: tuple[str, ...]  # as the person wrote it: without pydantic's tags for the schema chosen for a table
    hint: Any = None  # its type; None if there is no such key
    metadata: Sequence[Any] = ()


def explain(error: ValidationError, spec: type[BaseModel]) -> str:
    """What is wrong: an unknown key, which often explains a missing one, or else the first error in the document."""
    first, where = _first(error), key_of(error, spec)[:MAX_KEY]
    if first["type"] == "extra_forbidden":
        return f"unknown key '{where}'; the nearest known key is '{_nearest(where, _known_keys(spec))}'"
    what = first["msg"].removeprefix("Value error, ")
    if first["type"] == UNKNOWN_NAME:
        return f"'{where}' is {_given(_name_in(first['input']))}; it {what}"
    must = "" if first["type"] in OWN_WORDS else _allowed(_place(first["loc"], spec))
    if not where or not must:
        return f"'{where}': {what}" if where else what
    if first["type"] == "missing":
        return f"the key '{where}' is missing: it must be {must}"
    if first["type"] == "finite_number":
        must = must.replace("a number", "a finite number", 1)
    return f"'{where}' is {_given(first['input'])}; it must be {must}"


def key_of(error: ValidationError, spec: type[BaseModel]) -> str:
    """The dotted key that `explain` is about; empty if the whole document is meant."""
    first = _first(error)
    return ".".join([*_place(first["loc"], spec).key, *(["name"] if first["type"] == UNKNOWN_NAME else [])])


def _first(error: ValidationError) -> ErrorDetails:
    return min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")


def _place(loc: Sequence[int | str], spec: type[BaseModel]) -> _Place:
    place = _Place((), spec)
    for part in loc:
        tagged = dict(schemas(place.hint)) if get_origin(bare(place.hint)) is not tuple else {}
        is_tag = "" not in tagged and part in tagged
        place = _Place(place.key, tagged[str(part)]) if is_tag else _within(place, part)
    return place


def _within(place: _Place, part: int | str) -> _Place:
    """One key, or element of a list, further in."""
    key, hint = (*place.key, str(part)), bare(place.hint)
    if get_origin(hint) is tuple:
        members = get_args(hint)
        is_there = isinstance(part, int) and (members[-1] is Ellipsis or part < len(members))
        return _Place(key, members[0 if members[-1] is Ellipsis else int(part)]) if is_there else _Place(key)
    fields = hint.model_fields if isinstance(hint, type) and issubclass(hint, BaseModel) else {}
    field = fields.get(str(part))
    return _Place(key, field.annotation, field.metadata) if field is not None else _Place(key)


def _allowed(place: _Place) -> str:
    """What may stand there, in words; empty if its schema does not say."""
    words, key = allowed(place.hint, place.metadata), ".".join(place.key)
    if words.endswith("each a table"):
        return f"{words}, written as [[{key}]]"
    return f"{words}, written as [{key}]" if words == "a table" else words


def _name_in(table: Any) -> Any:
    return table.get("name") if isinstance(table, Mapping) else getattr(table, "name", None)


def _given(thing: Any) -> str:
    """A wrong value in words, in a few characters."""
    if isinstance(thing, bool | str | int | float):
        words = str(thing) if isinstance(thing, int) and not isinstance(thing, bool) else value(thing)
        return words if len(words) <= MAX_GIVEN else f"{words[:MAX_GIVEN]}..."
    if isinstance(thing, Mapping):
        return "a table"
    if isinstance(thing, list | tuple):
        return f"a list of {len(thing)}"
    return "empty" if thing is None else f"a {type(thing).__name__}"


def _known_keys(spec: type[BaseModel], prefix: str = "") -> list[str]:
    """All dotted keys of the schema, those of tables included."""
    keys = []
    for name, field in spec.model_fields.items():
        keys.append(prefix + name)
        for _, table in schemas(field.annotation):
            keys += _known_keys(table, f"{prefix}{name}.")
    return keys


def _nearest(wrong: str, known: list[str]) -> str:
    """A similar key of the same table, or else one of another table, or else the most similar of all."""
    *tables, leaf = wrong.split(".")
    table = ".".join(part for part in tables if not part.isdecimal())  # without the numbers of elements of a list
    beside = {key.rpartition(".")[2]: key for key in known if key.rpartition(".")[0] == table}
    anywhere = {key.rpartition(".")[2]: key for key in reversed(known)}  # of several tables the first
    for choice in (beside, anywhere):
        if close := difflib.get_close_matches(leaf, choice, n=1):
            return choice[close[0]]
    return difflib.get_close_matches(wrong, known, n=1, cutoff=0.0)[0]
