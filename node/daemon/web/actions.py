"""What people do at the page: each change is a line in the node's log, and the last ones are on all open pages."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from contextlib import suppress
from typing import Any

from aiohttp import web

from shoal.node.api.http import Handler, failure
from shoal.node.api.operations import Operation
from shoal.node.base.lines import printable
from shoal.node.base.options import is_run_id
from shoal.protocol.base.errors import ShoalError

KEPT = 20  # actions that are shown
MOST_AT_ONCE = 4  # actions that are under way; a join may take hours, and goes on if its page is closed
MAX_FIELD = 80  # characters of a field of the request

log = logging.getLogger("shoal.api")


class PageActions:
    """The last actions, newest first, as {at, words, error}; `error` is null if it went well."""

    def __init__(self) -> None:
        self._kept: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._count = self._under_way = 0

    def recent(self) -> list[dict[str, Any]]:
        """For the page."""
        return list(self._kept)

    async def note(self, operation: Operation[Any, Any], request: web.Request, handler: Handler) -> web.StreamResponse:
        """Have a request answered, and note what came of it; not if too many are being answered."""
        if self._under_way >= MOST_AT_ONCE:
            return failure(429, f"{MOST_AT_ONCE} actions are under way at the page: wait for one of them", "busy")
        given = {**await body_of(request), **request.match_info}
        self._under_way += 1
        try:
            response = await handler(request)
        except BaseException as error:  # raised again: another middleware answers, in the words that a caller may see
            self._add(_words(operation, given), _reason(error))
            raise
        finally:
            self._under_way -= 1
        self._add(_words(operation, given | _answer(response)), None)
        return response

    def _add(self, words: str, error: str | None) -> None:
        self._count += 1  # in the line, as the log holds identical lines back
        self._kept.appendleft({"at": time.time(), "words": words, "error": error})
        failed = f"; it failed: {printable(error)}" if error else ""
        log.info("at the page, action %d: %s%s", self._count, words, failed, extra={"code": "page-action"})


def _words(operation: Operation[Any, Any], fields: dict[str, Any]) -> str:
    """What was done; fields that are not known are left out."""
    shown = operation.on_page.format_map(_Fields({name: _shown(value) for name, value in fields.items()}))
    return " ".join(shown.split())


def _answer(response: web.StreamResponse) -> dict[str, Any]:
    """The name of the run in an answer, if it has one."""
    with suppress(ValueError, RecursionError):
        answer = json.loads(response.text or "") if isinstance(response, web.Response) else None
        if isinstance(answer, dict) and "name" in answer:
            return {"name": answer["name"]}
    return {}


def _reason(error: BaseException) -> str:
    """Why an action has failed."""
    if isinstance(error, ShoalError | web.HTTPException):
        return str(error)
    return "the node's mistake" if isinstance(error, Exception) else "it was broken off"


class _Fields(dict[str, str]):
    """The fields of a request, for `format_map`; one that was left out is empty."""

    def __missing__(self, name: str) -> str:
        return ""


async def body_of(request: web.Request) -> dict[str, Any]:
    """The request's JSON object; empty if it is none, which its route says."""
    with suppress(ValueError, RecursionError):
        if isinstance(body := json.loads(await request.read()), dict):
            return body
    return {}


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{_shown(key)} = {_shown(each)}" for key, each in value.items())[: 4 * MAX_FIELD]
    text = "none" if value is None else printable(str(value))[:MAX_FIELD]
    return text[:8] if is_run_id(text) else text
