"""OpenAI's routes over one model: each reads the request, has it planned, and lets the engine answer."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web

from shoal.node.serve.answering import answer, stream
from shoal.node.serve.engine import Engine
from shoal.node.serve.faults import BadRequest, Fault
from shoal.node.serve.planning import Plan, check_model, plan_chat, plan_completion
from shoal.node.serve.requests import Asked, AskedKind, ChatAsked, CompletionAsked, read_asked
from shoal.node.serve.scorer import Telling
from shoal.node.serve.served import Served
from shoal.node.serve.shapes import Shape

QUICK = 16 << 10  # bytes of a body whose tokens are made at once; those of a longer one in a thread
PATIENCE = 30.0  # seconds for a body to come

Planner = Callable[[AskedKind, Served, int], Plan]


class Routes:
    """The routes over `served`, which `engine` writes for."""

    def __init__(self, served: Served, engine: Engine, stall: float) -> None:
        self._served, self._engine, self._stall = served, engine, stall

    def table(self) -> list[web.RouteDef]:
        """Which path is answered by which method."""
        return [
            web.get("/v1/models", self._models),
            web.get("/v1/models/{model:.+}", self._one_model),
            web.post("/v1/completions", self._complete),
            web.post("/v1/chat/completions", self._chat),
        ]

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._about()]})

    async def _one_model(self, request: web.Request) -> web.Response:
        if (name := request.match_info["model"]) != self._served.name:
            raise Fault(404, f"the model '{name[:100]}' does not exist here", param="model", code="model_not_found")
        return web.json_response(self._about())

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        return await self._write(request, CompletionAsked, plan_completion)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._write(request, ChatAsked, plan_chat)

    async def _write(
        self, request: web.Request, kind: type[AskedKind], planner: Planner[AskedKind]
    ) -> web.StreamResponse:
        body = await read_json(request)
        asked = read_asked(kind, body)
        check_model(asked, self._served)
        seed = secrets.randbits(63)
        if (request.content_length or QUICK) < QUICK:
            plan = planner(asked, self._served, seed)
        else:
            plan = await asyncio.to_thread(planner, asked, self._served, seed)
        shape = self._shape(asked, is_chat=kind is ChatAsked, tells_logprobs=plan.jobs[0].alternatives is not None)
        if not asked.stream:
            return await answer(self._engine, plan, shape)
        return await stream(self._engine, plan, shape, request, stall=self._stall, tells_usage=asked.tells_usage)

    def _shape(self, asked: Asked, *, is_chat: bool, tells_logprobs: bool) -> Shape:
        name = ("chatcmpl-" if is_chat else "cmpl-") + secrets.token_hex(12)
        version = self._served.scorer.version
        return Shape(name, int(time.time()), self._served.name, version, is_chat, tells_logprobs)

    def _about(self) -> dict[str, Any]:
        """The model as OpenAI lists one, and what only we say."""
        served, load = self._served, self._engine.load()
        table = {"id": served.name, "object": "model", "created": served.created, "owned_by": "shoal"}
        about = {"source": served.sentence, "version": served.scorer.version, "context": served.scorer.limit}
        if isinstance(served.scorer, Telling):
            about |= served.scorer.about()
        return table | {"shoal": about | {"slots": load.slots, "busy": load.busy, "waiting": load.waiting}}


async def read_json(request: web.Request) -> Any:
    """The body; BadRequest if it is not JSON, or does not say that it is."""
    if request.content_type != "application/json":
        raise BadRequest("the body must be JSON, and the header Content-Type say so: application/json")
    try:
        async with asyncio.timeout(PATIENCE):
            return json.loads(await request.read())
    except TimeoutError as error:
        raise Fault(408, f"the body has not come within {PATIENCE:g} s") from error
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    except RecursionError as error:
        raise BadRequest("the body is nested too deeply") from error
