"""What may stand at a key of a document, in words, as its schema says it.

One source for the document's page, for errors about it, and for a file to begin with: beside its types a schema has
`Help` and `Form`, in their `Annotated`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Tag
from pydantic.fields import FieldInfo

LIMITS = ("ge", "gt", "le", "lt", "min_length", "max_length")


@dataclass(frozen=True, slots=True)
class Help:
    """What a key means: `Annotated[int, Field(ge=1), Help("Steps between two exchanges.", unit="steps")]`."""

    what: str  # in whole sentences
    unit: str = ""  # of a number, in the plural
    larger: str = ""  # what a larger number changes; without a capital and a full stop
    smaller: str = ""
    is_filled_in: bool = False  # by the program: a person leaves it out

    def __str__(self) -> str:
        changes = (("Larger", self.larger), ("Smaller", self.smaller))
        return " ".join([self.what, *(f"{word}: {change}." for word, change in changes if change)])


@dataclass(frozen=True, slots=True)
class Form:
    """How a text must look, beside the pattern that says the same to the program."""

    words: str  # as "64 hexadecimal digits"


def help_of(field: FieldInfo) -> Help | None:
    """What a schema says about one of its keys; None if it says nothing."""
    return next((each for each in field.metadata if isinstance(each, Help)), None)


def schemas(hint: Any) -> Iterator[tuple[str, type[BaseModel]]]:
    """(tag, schema) for each table that may stand here, alone or in a list; the tag is "" if there is no choice."""
    if get_origin(hint) is Annotated:
        inner, *metadata = get_args(hint)
        tag = next((each.tag for each in metadata if isinstance(each, Tag)), "")
        yield from ((tag or own, schema) for own, schema in schemas(inner))
    elif isinstance(hint, type) and issubclass(hint, BaseModel):
        yield "", hint
    else:
        for member in get_args(hint):
            yield from schemas(member)


def is_number(hint: Any) -> bool:
    """Whether a number may stand here."""
    hint = bare(hint)
    return hint in (int, float) or (get_origin(hint) is tuple and is_number(get_args(hint)[0]))


def bare(hint: Any) -> Any:
    """The type without metadata, and without None if only one other may stand beside it."""
    if get_origin(hint) is Annotated:
        return bare(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        members = [each for each in get_args(hint) if each is not NoneType]
        return bare(members[0]) if len(members) == 1 else hint
    return hint


def allowed(hint: Any, metadata: Iterable[Any] = ()) -> str:
    """What a value of this type must be, such as "a whole number of steps, from 1 to 100,000"; empty if unknown."""
    said = list(_flat(metadata))
    if get_origin(hint) is Annotated:
        inner, *own = get_args(hint)
        return allowed(inner, [*own, *said])
    if get_origin(hint) in (Union, UnionType):
        return allowed(next(each for each in get_args(hint) if each is not NoneType), said)
    if get_origin(hint) is Literal:
        return _one_of([value(each) for each in get_args(hint)])
    limits = {name: limit for each in said for name in LIMITS if (limit := getattr(each, name, None)) is not None}
    if get_origin(hint) is tuple:
        return _list(get_args(hint), limits)
    if hint is str:
        return _text(said, limits)
    if hint in (int, float):
        unit = next((each.unit for each in reversed(said) if isinstance(each, Help)), "")  # the outermost
        return _number("a whole number" if hint is int else "a number", unit, limits)
    if hint is bool:
        return "true or false"
    return "a table" if get_origin(hint) is dict or [*schemas(hint)] else ""


def value(given: Any) -> str:
    """A value as it is written in TOML, in which large numbers have underscores; tables are not spelled out."""
    if isinstance(given, bool | str):
        return json.dumps(given, ensure_ascii=False)
    if isinstance(given, int | float):
        return f"{given:_}" if isinstance(given, int) and abs(given) >= 10_000 else str(given)
    if isinstance(given, list | tuple):
        return f"[{', '.join(map(value, given))}]"
    return "a table"


def figure(number: float) -> str:
    """A bound, short: powers of two that nobody knows by heart are written as such."""
    if not isinstance(number, int):
        return f"{number:g}"
    is_power = number > 1 << 31 and number & (number - 1) == 0
    return f"2^{number.bit_length() - 1}" if is_power else f"{number:,}"


def _flat(metadata: Iterable[Any]) -> Iterator[Any]:
    """Metadata with what `Field(ge=1)` holds in its place."""
    for each in metadata:
        yield from each.metadata if isinstance(each, FieldInfo) else (each,)


def _one_of(choices: list[str]) -> str:
    if len(choices) < 3:
        return " or ".join(choices)
    return f"one of {', '.join(choices[:-1])} or {choices[-1]}"


def _list(members: tuple[Any, ...], limits: dict[str, Any]) -> str:
    length = _length(limits, "") if members[-1] is Ellipsis else f" of {len(members)}"
    return f"a list{length}, each {allowed(members[0])}"


def _text(said: list[Any], limits: dict[str, Any]) -> str:
    if form := next((each.words for each in said if isinstance(each, Form)), ""):
        return form
    pattern = next((found for each in said if (found := getattr(each, "pattern", None)) is not None), None)
    return f"a text that matches {pattern}" if pattern else f"a text{_length(limits, ' characters')}"


def _length(limits: dict[str, Any], unit: str) -> str:
    least, most = limits.get("min_length"), limits.get("max_length")
    if least is None:
        return "" if most is None else f" of at most {figure(most)}{unit}"
    return f" of {figure(least)} to {figure(most)}{unit}" if most is not None else f" of at least {figure(least)}{unit}"


def _number(noun: str, unit: str, limits: dict[str, Any]) -> str:
    noun = f"{noun} of {unit}" if unit else noun
    if "ge" in limits and "le" in limits:
        return f"{noun}, from {figure(limits['ge'])} to {figure(limits['le'])}"
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    bounds = " and ".join(f"{word} {figure(limits[name])}" for name, word in words.items() if name in limits)
    return f"{noun}, {bounds}" if bounds else noun
