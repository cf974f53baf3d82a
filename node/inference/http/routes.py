"""OpenAI's routes over one model: each reads the request, plans its texts, and has the engine write them.

/v1/models lists the one model that is served in OpenAI's shape, with Shoal's own facts beside it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web

from shoal.node.base.pools import ANSWERS
from shoal.node.inference.engine.engine import Engine
from shoal.node.inference.http.answers import AnswerFormat, answer, stream
from shoal.node.inference.http.body import BodyReader
from shoal.node.inference.http.errors import CALLER, ApiError, BadRequest
from shoal.node.inference.http.requests import ChatRequest, CompletionRequest, TextRequest
from shoal.node.inference.served import Served

QUICK = 16 << 10  # bytes: shorter bodies are tokenized in the event loop, longer ones in a thread


class ModelRoutes:
    """The routes that describe the served model."""

    def __init__(self, name: str, created: int, about: Callable[[], dict[str, Any]]) -> None:
        """`created` is in seconds since 1970; `about` gives Shoal's own facts as they are now."""
        self._name, self._created, self._about = name, created, about

    def table(self) -> list[web.RouteDef]:
        """The routes and their handlers."""
        return [web.get("/v1/models", self._all), web.get("/v1/models/{model:.+}", self._one)]

    def check(self, wanted: str) -> None:
        """ApiError unless `wanted` is the served model."""
        if wanted != self._name:
            message = f"the model '{wanted[:100]}' does not exist here: there is '{self._name}'"
            raise ApiError(404, message, CALLER, "model", "model_not_found")

    async def _all(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._listed()]})

    async def _one(self, request: web.Request) -> web.Response:
        self.check(request.match_info["model"].rstrip("/"))
        return web.json_response(self._listed())

    def _listed(self) -> dict[str, Any]:
        table = {"id": self._name, "object": "model", "created": self._created, "owned_by": "shoal"}
        return table | {"shoal": self._about()}


class TextRoutes:
    """The routes over a model that writes text."""

    def __init__(self, served: Served, engine: Engine, stall: float) -> None:
        """`stall`: seconds for which a client may read nothing of a stream."""
        self._served, self._engine, self._stall = served, engine, stall
        self._bodies = BodyReader()
        self._models = ModelRoutes(served.name, served.created, self._about)

    def table(self) -> list[web.RouteDef]:
        """The routes and their handlers."""
        return [
            *self._models.table(),
            web.post("/v1/completions", self._complete),
            web.post("/v1/chat/completions", self._chat),
            web.post("/v1/images/generations", self._no_pictures),
        ]

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        return await self._write(request, await self._bodies.read(request, CompletionRequest))

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._write(request, await self._bodies.read(request, ChatRequest))

    async def _no_pictures(self, request: web.Request) -> web.Response:
        raise ApiError(400, f"'{self._served.name}' writes text: ask it at /v1/completions or /v1/chat/completions")

    async def _write(self, request: web.Request, wanted: TextRequest) -> web.StreamResponse:
        self._models.check(wanted.model)
        seed = secrets.randbits(63)
        if (request.content_length or QUICK) < QUICK:
            plan = wanted.plan(self._served, seed)
        else:
            plan = await ANSWERS.run(wanted.plan, self._served, seed)
        if len(plan.jobs) > self._engine.capacity:
            key = "n" if wanted.n > 1 else "prompt"
            what = f"'{key}' asks for {len(plan.jobs)} texts at once: at most {self._engine.capacity} are written here"
            raise BadRequest(what, key)
        shape = self._format(wanted)
        if not wanted.stream:
            return await answer(self._engine, plan, shape)
        return await stream(self._engine, plan, shape, request, stall=self._stall, has_usage=wanted.wants_usage)

    def _format(self, wanted: TextRequest) -> AnswerFormat:
        is_chat = isinstance(wanted, ChatRequest)
        name = ("chatcmpl-" if is_chat else "cmpl-") + secrets.token_hex(12)
        return AnswerFormat(name, int(time.time()), self._served.name, is_chat, wanted.alternatives is not None)

    def _about(self) -> dict[str, Any]:
        scorer, load = self._served.scorer, self._engine.load()
        about = {"source": self._served.sentence, "version": scorer.version, "context": scorer.limit}
        return about | scorer.about() | {"slots": load.slots, "busy": load.busy, "waiting": load.waiting}
