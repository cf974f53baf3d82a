"""From a JSON body to the request that it is, by one rule for all kinds of requests, and for whatever is in them.

What is null is absent, at any depth. What means nothing here is ignored, and the log says so; it is refused if it would
change the answer: better an error than an answer to another question. So is every key that nobody knows. An error
names the key as one would write it in a program: messages[1].refusal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from shoal.node.inference.http.faults import UNSUPPORTED, BadRequest
from shoal.node.training.data.tables import SURROGATES

MAX_NAME = 100  # characters of a key that are given back
MISFIT = "misfit"  # the type of our own errors
FIRST = {"literal_error": 0, "extra_forbidden": 1}  # said before others: a role, say, decides which keys there may be


class Fields(BaseModel):
    """A request, or a table in one. What is OpenAI's, and no field of it, is named in `ignored` or in `neutral`."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    ignored: ClassVar[tuple[str, ...]] = ()  # keys that may have any value
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {}  # keys that are refused unless they have these values
    shapes: ClassVar[dict[str, str]] = {}  # what a field must be, where the library's words help nobody
    lists: ClassVar[dict[str, type[Fields]]] = {}  # what its lists of tables hold

    @model_validator(mode="before")
    @classmethod
    def _without_what_means_nothing(cls, table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        kept = {key: each for key, each in table.items() if key not in cls.ignored}
        for key, allowed in cls.neutral.items():
            if key in kept and kept.pop(key) not in allowed:
                values = " or ".join(map(json.dumps, allowed)) or "null"
                words = f"must be {values} here: another value would change the answer, and is not supported"
                raise misfit(words, key, code=UNSUPPORTED)
        return kept


class Body(Fields):
    """A request."""


AnyBody = TypeVar("AnyBody", bound=Body)


def misfit(words: str, *at: str | int, code: str | None = None) -> PydanticCustomError:
    """For validators: what is wrong, as a predicate, and where below that which is validated."""
    return PydanticCustomError(MISFIT, "{words}", {"words": words, "at": at, "code": code})


def read_asked(kind: type[AnyBody], body: Any) -> AnyBody:
    """The request that a JSON body is; BadRequest, which names the parameter, if it is none."""
    try:
        return kind.model_validate(as_meant(body))
    except ValidationError as error:
        first = min(error.errors(include_url=False), key=lambda each: FIRST.get(each["type"], len(FIRST)))
        raise _refusal(first, kind) from error
    except RecursionError as error:
        raise BadRequest("the body is nested too deeply") from error


def as_meant(value: Any, *at: str | int) -> Any:
    """Without keys whose value is null, and with 4 for 4.0: some clients know no absence, and no whole numbers.

    `at` is where it stands. BadRequest at half of a character, which is no text: it would become another one.
    """
    if isinstance(value, str) and not value.isascii() and (half := SURROGATES.search(value)):
        where = path_of(at) or "the body"
        cut = "as where a text was cut inside of an emoji"
        raise BadRequest(f"'{where}' holds half of a character, \\u{ord(half[0]):04x}, {cut}", where)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if each is not None}
        for key in kept:
            if (written := key.encode("utf-8", "backslashreplace").decode()) != key:
                raise _unknown(path_of((*at, written)))
        return {key: as_meant(each, *at, key) for key, each in kept.items()}
    return [as_meant(each, *at, number) for number, each in enumerate(value)] if isinstance(value, list) else value


def ignored_keys(kind: type[Fields], body: Any) -> Iterator[str]:
    """The keys of a body, and of the tables in its lists, that are ignored; some more than once."""
    if not isinstance(body, dict):
        return
    yield from (key for key in kind.ignored if body.get(key) is not None)
    for name, inner in kind.lists.items():
        several = body.get(name)
        for each in several if isinstance(several, list) else ():
            yield from (f"{name}[].{key}" for key in ignored_keys(inner, each))


def path_of(parts: Iterable[str | int]) -> str:
    """A key as one would write it in a program."""
    written = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return written.removeprefix(".")[:MAX_NAME]


def _refusal(first: ErrorDetails, kind: type[Body]) -> BadRequest:
    """An error of the library's as an answer."""
    context = first.get("ctx", {}) if first["type"] == MISFIT else {}
    parts = [*first["loc"], *context.get("at", ())]
    where = path_of(parts) or None
    if first["type"] == "extra_forbidden":
        return _unknown(path_of(parts))
    if first["type"] == "missing":
        return BadRequest(f"you must provide '{where}'", where)
    if where is None:
        return BadRequest("the body must be a JSON object")
    words = kind.shapes.get(str(parts[-1]), first["msg"])
    return BadRequest(f"'{where}' {words}" if context else f"'{where}': {words}", where, context.get("code"))


def _unknown(where: str) -> BadRequest:
    return BadRequest(f"unknown or unsupported parameter '{where}'", where, UNSUPPORTED)
