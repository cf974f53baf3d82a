"""OpenAI's routes over one model: each reads the request, has it planned, and lets the engine answer.

/v1/models lists the one model that is served as OpenAI lists it, with what only we say of it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web

from shoal.node.base.pools import ANSWERS
from shoal.node.inference.engine.engine import Engine
from shoal.node.inference.http.answers import Shape, answer, stream
from shoal.node.inference.http.body import AnyBody, ignored_keys, read_asked
from shoal.node.inference.http.faults import CALLER, BadRequest, Fault
from shoal.node.inference.http.requests import (
    Asked,
    AskedKind,
    ChatAsked,
    CompletionAsked,
    Plan,
    plan_chat,
    plan_completion,
)
from shoal.node.inference.served import Served

QUICK = 16 << 10  # bytes of a body whose tokens are made at once; those of a longer one in a thread
PATIENCE = 30.0  # seconds for a body to come
# That a body may be said to have: others cost time out of all proportion to its size, or are no text's.
ENCODINGS = {
    *("utf-8", "utf8", "utf-16", "utf-16le", "utf-16be", "utf-32", "utf-32le", "utf-32be"),
    *("us-ascii", "ascii", "iso-8859-1", "latin-1", "latin1", "windows-1252", "cp1252"),
}
FORM = "application/x-www-form-urlencoded"  # as curl and others say of any body, unless they are told otherwise

log = logging.getLogger("shoal.serve")

Planner = Callable[[AskedKind, Served, int], Plan]


class Listing:
    """The routes that tell what is served."""

    def __init__(self, name: str, created: int, about: Callable[[], dict[str, Any]]) -> None:
        """`created` is in seconds since 1970; `about` says how it stands now."""
        self._name, self._created, self._about = name, created, about

    def table(self) -> list[web.RouteDef]:
        """Which path is answered by which method."""
        return [web.get("/v1/models", self._all), web.get("/v1/models/{model:.+}", self._one)]

    def check(self, wanted: str) -> None:
        """Fault unless it is the model that is served."""
        if wanted != self._name:
            message = f"the model '{wanted[:100]}' does not exist here: there is '{self._name}'"
            raise Fault(404, message, CALLER, "model", "model_not_found")

    async def _all(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._listed()]})

    async def _one(self, request: web.Request) -> web.Response:
        self.check(request.match_info["model"].rstrip("/"))
        return web.json_response(self._listed())

    def _listed(self) -> dict[str, Any]:
        table = {"id": self._name, "object": "model", "created": self._created, "owned_by": "shoal"}
        return table | {"shoal": self._about()}


class Routes:
    """The routes over `served`, which `engine` writes for."""

    def __init__(self, served: Served, engine: Engine, stall: float) -> None:
        self._served, self._engine, self._stall = served, engine, stall
        self._bodies = Bodies()
        self._listing = Listing(served.name, served.created, self._about)

    def table(self) -> list[web.RouteDef]:
        """Which path is answered by which method."""
        return [
            *self._listing.table(),
            web.post("/v1/completions", self._complete),
            web.post("/v1/chat/completions", self._chat),
            web.post("/v1/images/generations", self._no_pictures),
        ]

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        return await self._write(request, CompletionAsked, plan_completion)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._write(request, ChatAsked, plan_chat)

    async def _no_pictures(self, request: web.Request) -> web.Response:
        raise Fault(400, f"'{self._served.name}' writes text: ask it at /v1/completions or /v1/chat/completions")

    async def _write(
        self, request: web.Request, kind: type[AskedKind], planner: Planner[AskedKind]
    ) -> web.StreamResponse:
        asked = await self._bodies.read(request, kind)
        self._listing.check(asked.model)
        seed = secrets.randbits(63)
        if (request.content_length or QUICK) < QUICK:
            plan = planner(asked, self._served, seed)
        else:
            plan = await ANSWERS.run(planner, asked, self._served, seed)
        if len(plan.jobs) > self._engine.most:
            key = "n" if asked.n > 1 else "prompt"
            what = f"'{key}' asks for {len(plan.jobs)} texts at once: at most {self._engine.most} are written here"
            raise BadRequest(what, key)
        shape = self._shape(asked, is_chat=kind is ChatAsked, tells_logprobs=plan.jobs[0].alternatives is not None)
        if not asked.stream:
            return await answer(self._engine, plan, shape)
        return await stream(self._engine, plan, shape, request, stall=self._stall, tells_usage=asked.tells_usage)

    def _shape(self, asked: Asked, *, is_chat: bool, tells_logprobs: bool) -> Shape:
        name = ("chatcmpl-" if is_chat else "cmpl-") + secrets.token_hex(12)
        return Shape(name, int(time.time()), self._served.name, is_chat, tells_logprobs)

    def _about(self) -> dict[str, Any]:
        served, load = self._served, self._engine.load()
        about = {"source": served.sentence, "version": served.scorer.version, "context": served.scorer.limit}
        about |= served.scorer.about()
        return about | {"slots": load.slots, "busy": load.busy, "waiting": load.waiting}


class Bodies:
    """Reads what is asked, and says in the log of each key that is ignored that it is: once."""

    def __init__(self) -> None:
        self._noted: set[str] = set()

    async def read(self, request: web.Request, kind: type[AnyBody]) -> AnyBody:
        """The request that the body is; BadRequest if it is none."""
        body = await read_json(request)
        asked = read_asked(kind, body)
        if fresh := dict.fromkeys(key for key in ignored_keys(kind, body) if key not in self._noted):
            self._noted.update(fresh)
            log.info("what clients send as %s is ignored, as it would change no answer", ", ".join(fresh))
        return asked


async def read_json(request: web.Request) -> Any:
    """The body; BadRequest if it is not JSON, or does not say that it is."""
    _check_kind(request)
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
        raise Fault(408, f"the body has not come within {PATIENCE:g} s") from error
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    except RecursionError as error:
        raise BadRequest("the body is nested too deeply") from error


def _check_kind(request: web.Request) -> None:
    """BadRequest unless the body says that it is JSON; who is no browser's page need not say so.

    A page of another origin could send a body of no kind, or a form's, without having asked whether it may.
    """
    said = request.headers.get("Content-Type", "")
    if request.content_type == "application/json" or request.content_type.endswith("+json"):
        return
    is_from_page = "Origin" in request.headers or "Sec-Fetch-Site" in request.headers
    if is_from_page or (said and request.content_type != FORM):
        raise BadRequest("the body must be JSON, and the header Content-Type say so: application/json")
