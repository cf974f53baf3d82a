"""Reads JSON bodies, and parses them into typed requests (pydantic), with the same rules for every kind of request.

Null means absent, at any depth. A key that has no meaning here is ignored, and the log says so; but it is refused if it
would change the answer, as an error is better than the answer to another question. Unknown keys are refused. Errors
name the key as one would write it in a program: messages[1].refusal.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from shoal.node.inference.http.errors import UNSUPPORTED, ApiError, BadRequest
from shoal.node.training.data.tables import SURROGATES

MAX_NAME = 100  # characters of a key that an error repeats
OWN_ERROR = "own"  # pydantic's type of the errors that our validators raise
FIRST = {"literal_error": 0, "extra_forbidden": 1}  # reported before others: a role, say, decides which keys there are
PATIENCE = 30.0  # seconds for a body to arrive
# Encodings that a body may have. Others take far more time than their size explains, or are not for text.
ENCODINGS = {
    *("utf-8", "utf8", "utf-16", "utf-16le", "utf-16be", "utf-32", "utf-32le", "utf-32be"),
    *("us-ascii", "ascii", "iso-8859-1", "latin-1", "latin1", "windows-1252", "cp1252"),
}
FORM = "application/x-www-form-urlencoded"  # the type that curl and others state for any body, unless told otherwise

log = logging.getLogger("shoal.serve")


class RequestModel(BaseModel):
    """A request, or a table in one. OpenAI's keys that are not among its fields are in `ignored` or in `neutral`."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    ignored: ClassVar[tuple[str, ...]] = ()  # keys that may have any value
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {}  # keys that are refused unless they have one of these values
    lists: ClassVar[dict[str, type[RequestModel]]] = {}  # for fields that are lists of tables, the type of these

    @model_validator(mode="before")
    @classmethod
    def _drop_unused_keys(cls, table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        kept = {key: each for key, each in table.items() if key not in cls.ignored}
        for key, allowed in cls.neutral.items():
            if key in kept and kept.pop(key) not in allowed:
                values = " or ".join(map(json.dumps, allowed)) or "null"
                words = f"must be {values} here: another value would change the answer, and is not supported"
                raise validation_error(words, key, code=UNSUPPORTED)
        return kept


AnyRequest = TypeVar("AnyRequest", bound=RequestModel)


def validation_error(words: str, *at: str | int, code: str | None = None) -> PydanticCustomError:
    """For validators: `words` say what is wrong, as a predicate; `at` is where, below the validated value."""
    return PydanticCustomError(OWN_ERROR, "{words}", {"words": words, "at": at, "code": code})


# -- from the connection to JSON ----------------------------------------------------------------------------


class BodyReader:
    """Reads requests, and logs each ignored key once."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    async def read(self, request: web.Request, kind: type[AnyRequest]) -> AnyRequest:
        """The parsed body; ApiError if it is not a valid request."""
        body = await _read_json(request)
        parsed = parse_body(kind, body)
        if fresh := dict.fromkeys(key for key in _ignored_keys(kind, body) if key not in self._logged):
            self._logged.update(fresh)
            log.info("what clients send as %s is ignored, as it would change no answer", ", ".join(fresh))
        return parsed


async def _read_json(request: web.Request) -> Any:
    """The body; ApiError if it is not JSON, does not say that it is, or comes too slowly."""
    _check_content_type(request)
    try:
        async with asyncio.timeout(PATIENCE):
            content = await request.read()
        if not content.strip():
            raise BadRequest("the body is empty: it must be a JSON object")
        charset = (request.charset or "utf-8").lower().replace("_", "-")
        if charset not in ENCODINGS:
            raise BadRequest(f"the header Content-Type names the encoding {charset[:40]!r}: send UTF-8")
        return json.loads(content if charset in ("utf-8", "utf8") else content.decode(charset))
    except TimeoutError as error:
        raise ApiError(408, f"the body has not come within {PATIENCE:g} s") from error
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    except RecursionError as error:
        raise BadRequest("the body is nested too deeply") from error


def _check_content_type(request: web.Request) -> None:
    """BadRequest unless the body says that it is JSON; clients other than web pages may omit the header.

    A page of another origin could send a body without a type, or a form's, without asking for permission (CORS).
    """
    said = request.headers.get("Content-Type", "")
    if request.content_type == "application/json" or request.content_type.endswith("+json"):
        return
    is_from_page = "Origin" in request.headers or "Sec-Fetch-Site" in request.headers
    if is_from_page or (said and request.content_type != FORM):
        raise BadRequest("the body must be JSON, and the header Content-Type say so: application/json")


def _ignored_keys(kind: type[RequestModel], body: Any) -> Iterator[str]:
    """The ignored keys of a body, and of the tables in its lists; some more than once."""
    if not isinstance(body, dict):
        return
    yield from (key for key in kind.ignored if body.get(key) is not None)
    for name, inner in kind.lists.items():
        several = body.get(name)
        for each in several if isinstance(several, list) else ():
            yield from (f"{name}[].{key}" for key in _ignored_keys(inner, each))


# -- from JSON to a request ---------------------------------------------------------------------------------


def parse_body(kind: type[AnyRequest], body: Any) -> AnyRequest:
    """The request in a JSON body; BadRequest, which names the parameter, if it is not valid."""
    try:
        return kind.model_validate(_normalised(body))
    except ValidationError as error:
        first = min(error.errors(include_url=False), key=lambda each: FIRST.get(each["type"], len(FIRST)))
        raise _bad_request(first) from error
    except RecursionError as error:
        raise BadRequest("the body is nested too deeply") from error


def _normalised(value: Any, *at: str | int) -> Any:
    """`value` without keys that are null, and with 4 for 4.0: some clients cannot leave keys out, or write integers.

    `at` is the path of the value. BadRequest for a lone surrogate, which is no text and would become other characters.
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
                raise _unknown_key(path_of((*at, written)))
        return {key: _normalised(each, *at, key) for key, each in kept.items()}
    return [_normalised(each, *at, number) for number, each in enumerate(value)] if isinstance(value, list) else value


def path_of(parts: Iterable[str | int]) -> str:
    """A path of keys and indices, as one would write it in a program."""
    written = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return written.removeprefix(".")[:MAX_NAME]


def _bad_request(first: ErrorDetails) -> BadRequest:
    """The response for an error of pydantic, or of our validators."""
    context = first.get("ctx", {}) if first["type"] == OWN_ERROR else {}
    where = path_of([*first["loc"], *context.get("at", ())]) or None
    if first["type"] == "extra_forbidden":
        return _unknown_key(where or "")
    if first["type"] == "missing":
        return BadRequest(f"you must provide '{where}'", where)
    if where is None:
        return BadRequest("the body must be a JSON object")
    colon = "" if context else ":"  # our own words are a predicate, pydantic's a sentence
    return BadRequest(f"'{where}'{colon} {first['msg']}", where, context.get("code"))


def _unknown_key(where: str) -> BadRequest:
    return BadRequest(f"unknown or unsupported parameter '{where}'", where, UNSUPPORTED)
