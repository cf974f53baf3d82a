"""The routes of the admin API's operations: each parses its request, calls the handler and sends its answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import MISSING, dataclass, fields
from inspect import isawaitable
from types import NoneType, UnionType
from typing import Any, cast, get_args, get_origin, get_type_hints

from aiohttp import web

from shoal.node.api.operations import Handler, Operation
from shoal.node.base.textfile import decoded, parse_table
from shoal.protocol.base.errors import LocalError

KINDS: dict[type, str] = {str: "a text", bool: "true or false", list: "a list", dict: "an object", int: "a number"}
KINDS[float] = KINDS[int]
MAX_KEY = 100  # characters of a wrong key that an error repeats


def routes(handlers: Iterable[Handler]) -> list[web.RouteDef]:
    """A route for each handler."""
    return [_route(each) for each in handlers]


def _route(handler: Handler) -> web.RouteDef:
    operation, asked = handler.operation, _Request.of(handler.operation)

    async def answer(request: web.Request) -> web.StreamResponse:
        found = handler.answer(**await asked.read(request, operation.method == "POST"))
        if operation.in_lines:
            return await _in_lines(request, found)
        answered = await found if isawaitable(found) else found
        return web.json_response(answered, status=operation.status)

    return {"GET": web.get, "POST": web.post}[operation.method](operation.path, answer, name=operation.name)


async def _in_lines(request: web.Request, lines: Any) -> web.StreamResponse:
    """Send JSON lines as they come. An error before the first one becomes an ordinary error response."""
    async with aclosing(lines) as answers:
        first = await anext(answers)
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        with suppress(ConnectionError):  # the reader is gone
            await response.write(_line(first))
            async for answer in answers:
                await response.write(_line(answer))
    return response


def _line(answer: Any) -> bytes:
    return json.dumps(answer).encode() + b"\n"


# -- requests -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Request:
    """How a request of an operation is read: the fields of its path or query, and those of its body."""

    told: dict[str, type]  # in the path or the query
    required: dict[str, type]  # in the body
    optional: dict[str, type]

    @classmethod
    def of(cls, operation: Operation[Any, Any]) -> _Request:
        """By the types of the dataclass's fields."""
        hints = get_type_hints(operation.request)
        told, required, optional = dict[str, type](), dict[str, type](), dict[str, type]()
        for field in fields(cast(Any, operation.request)):
            kind = _plain(hints[field.name])
            is_told = operation.method == "GET" or f"{{{field.name}}}" in operation.path
            (told if is_told else required if field.default is MISSING else optional)[field.name] = kind
        return cls(told, required, optional)

    async def read(self, request: web.Request, has_body: bool) -> dict[str, Any]:
        """The fields that were given; LocalError if they are wrong."""
        given = {**request.query, **request.match_info}
        found: dict[str, Any] = {}
        for name, kind in self.told.items():
            if name in given:
                what = f"the {name}" if name in request.match_info else f"'{name}'"
                found[name] = _count(given[name], what) if kind is int else given[name]
        return found | (await read_body(request, self.required, self.optional) if has_body else {})


def _plain(hint: Any) -> type:
    """The JSON type of a field: without None, a list for a sequence, and a dict for any kind of dict."""
    if isinstance(hint, UnionType):
        hint = next(each for each in get_args(hint) if each is not NoneType)
    origin = get_origin(hint)
    return list if origin is Sequence else origin or hint


async def read_body(
    request: web.Request, required: dict[str, type], optional: dict[str, type] | None = None
) -> dict[str, Any]:
    """The request's JSON object; LocalError unless it has the required fields, perhaps optional ones, and no others.

    Each must be of its type; the elements of lists must be texts. null counts as absent.
    """
    what = "the request's body"
    body = parse_table(decoded(await request.read(), what), what)  # UTF-8, whatever its header says
    allowed = {**required, **(optional or {})}
    body = {key: value for key, value in body.items() if value is not None}
    if unknown := body.keys() - allowed.keys():
        known = f"it may have {', '.join(sorted(allowed))}" if allowed else "it has none here"
        raise LocalError(f"unknown key '{min(unknown)[:MAX_KEY]}' in the body: {known}", code="bad-request")
    for key, kind in allowed.items():
        if key in required and key not in body:
            raise LocalError(f"the body lacks '{key}': it must be {KINDS[kind]}", code="bad-request")
        if key in body and type(body[key]) is not kind and not (kind is float and type(body[key]) is int):
            raise LocalError(
                f"the body's '{key}' must be {KINDS[kind]}, not {KINDS.get(type(body[key]), 'a number')}",
                code="bad-request",
            )
        for number, each in enumerate(body.get(key, []) if kind is list else []):
            if not isinstance(each, str):
                raise LocalError(f"the body's '{key}[{number}]' must be a text", code="bad-request")
    return body


def _count(text: str, what: str) -> int:
    """A round, or a number of rounds, as text from a URL; LocalError if it is no positive integer."""
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text)):
        raise LocalError(f"{what} must be a number of rounds, not '{text[:20]}'", code="bad-request")
    return int(text)
