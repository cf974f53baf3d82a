"""The JSON API: one short method per route, which reads the request, asks the service and answers."""

from __future__ import annotations

import json
from contextlib import aclosing, suppress
from typing import Any

from aiohttp import web

from shoal.node.service import Answer, NodeService
from shoal.node.textfile import decoded, parse_table
from shoal.protocol.errors import LocalError

KINDS: dict[type, str] = {str: "a text", bool: "true or false", list: "a list", dict: "an object", int: "a number"}
MAX_KEY = 100  # characters of a wrong key that are given back


class Routes:
    """The routes over `service`."""

    def __init__(self, service: NodeService) -> None:
        self._service = service

    def table(self) -> list[web.RouteDef]:
        """Which path is answered by which method."""
        return [
            web.get("/v1/status", self._status),
            web.get("/v1/peers", self._peers),
            web.get("/v1/netcheck", self._netcheck),
            web.post("/v1/doctor", self._examine),
            web.get("/v1/runs", self._runs),
            web.post("/v1/runs", self._create_run),
            web.get("/v1/discover", self._public_runs),
            web.get("/v1/runs/{run}", self._run_details),
            web.get("/v1/runs/{run}/rounds", self._rounds),
            web.get("/v1/runs/{run}/rounds/{round}", self._timeline),
            web.get("/v1/runs/{run}/link", self._run_link),
            web.post("/v1/preview", self._preview_run),
            web.post("/v1/join", self._join_by_link),
            web.post("/v1/runs/{run}/join", self._join_run),
            web.post("/v1/runs/{run}/leave", self._leave_run),
            web.post("/v1/runs/{run}/save", self._save_state),
            web.get("/v1/experts/{family}", self._experts),
            web.get("/v1/experts/{family}/sources", self._expert_sources),
            web.post("/v1/experts/{family}/fetch", self._fetch_experts),
            web.post("/v1/stop", self._stop),
        ]

    async def _status(self, request: web.Request) -> web.Response:
        return web.json_response(self._service.status())

    async def _peers(self, request: web.Request) -> web.Response:
        return web.json_response(self._service.peers())

    async def _netcheck(self, request: web.Request) -> web.Response:
        return web.json_response(self._service.netcheck())

    async def _examine(self, request: web.Request) -> web.StreamResponse:
        """One JSON object a line, as they come. What fails before the first is an error like any other."""
        body = await read_body(request, {"peer": str})
        async with aclosing(self._service.examine(body["peer"])) as answers:
            first = await anext(answers)
            response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
            await response.prepare(request)
            with suppress(ConnectionError):  # the reader is gone, and does not want to know any more
                await response.write(_line(first))
                async for answer in answers:
                    await response.write(_line(answer))
        return response

    async def _runs(self, request: web.Request) -> web.Response:
        return web.json_response(self._service.status()["runs"])

    async def _public_runs(self, request: web.Request) -> web.Response:
        return web.json_response(await self._service.public_runs())

    async def _run_details(self, request: web.Request) -> web.Response:
        return web.json_response(self._service.run_details(request.match_info["run"]))

    async def _rounds(self, request: web.Request) -> web.Response:
        last = request.query.get("last")
        return web.json_response(
            self._service.rounds(request.match_info["run"], _count(last, "'last'") if last is not None else None)
        )

    async def _timeline(self, request: web.Request) -> web.Response:
        run, number = request.match_info["run"], request.match_info["round"]
        return web.json_response(self._service.timeline(run, _count(number, "the round")))

    async def _create_run(self, request: web.Request) -> web.Response:
        body = await read_body(request, {"manifest": str, "train": bool}, {"checkpoints": list})
        checkpoints = body.get("checkpoints", [])
        if strange := [number for number, each in enumerate(checkpoints) if not isinstance(each, str)]:
            raise LocalError(
                f"the body's 'checkpoints[{strange[0]}]' must be a text, the path of a checkpoint's folder"
            )
        created = await self._service.create_run(body["manifest"], body["train"], checkpoints)
        return web.json_response(created)

    async def _run_link(self, request: web.Request) -> web.Response:
        return web.json_response(self._service.run_link(request.match_info["run"]))

    async def _preview_run(self, request: web.Request) -> web.Response:
        body = await read_body(request, {"link": str})
        return web.json_response(await self._service.preview_run(body["link"]))

    async def _join_by_link(self, request: web.Request) -> web.Response:
        body = await read_body(request, {"link": str, "train": bool}, {"checkpoint": str})
        joined = await self._service.join_run(body["link"], body["train"], body.get("checkpoint", ""))
        return web.json_response(joined)

    async def _join_run(self, request: web.Request) -> web.Response:
        body = await read_body(request, {"train": bool}, {"checkpoint": str})
        run, checkpoint = request.match_info["run"], body.get("checkpoint", "")
        return web.json_response(await self._service.join_run(run, body["train"], checkpoint))

    async def _leave_run(self, request: web.Request) -> web.Response:
        await read_body(request, {})
        return web.json_response(await self._service.leave_run(request.match_info["run"]))

    async def _save_state(self, request: web.Request) -> web.Response:
        body = await read_body(request, {"path": str}, {"own": bool})
        run, own = request.match_info["run"], body.get("own", False)
        return web.json_response(await self._service.save_state(run, body["path"], own))

    async def _experts(self, request: web.Request) -> web.Response:
        return web.json_response(self._service.experts(request.match_info["family"]))

    async def _expert_sources(self, request: web.Request) -> web.Response:
        return web.json_response(await self._service.expert_sources(request.match_info["family"]))

    async def _fetch_experts(self, request: web.Request) -> web.Response:
        body = await read_body(request, {"folder": str})
        return web.json_response(await self._service.fetch_experts(request.match_info["family"], body["folder"]))

    async def _stop(self, request: web.Request) -> web.Response:
        await read_body(request, {})
        await self._service.stop()
        return web.json_response({"stopping": True}, status=202)


def _line(answer: Answer) -> bytes:
    return json.dumps(answer).encode() + b"\n"


async def read_body(
    request: web.Request, fields: dict[str, type], optional: dict[str, type] | None = None
) -> dict[str, Any]:
    """The request's JSON object: these fields of these types, perhaps the optional ones; LocalError for all else.

    What is null is absent.
    """
    what = "the request's body"
    body = parse_table(decoded(await request.read(), what), what)  # UTF-8, whatever its header says
    allowed = {**fields, **(optional or {})}
    body = {key: value for key, value in body.items() if value is not None}
    if unknown := body.keys() - allowed.keys():
        known = f"it may have {', '.join(sorted(allowed))}" if allowed else "it has none here"
        raise LocalError(f"unknown key '{min(unknown)[:MAX_KEY]}' in the body: {known}")
    for key, kind in allowed.items():
        if key in fields and key not in body:
            raise LocalError(f"the body lacks '{key}': it must be {KINDS[kind]}")
        if key in body and type(body[key]) is not kind:
            raise LocalError(f"the body's '{key}' must be {KINDS[kind]}, not {KINDS.get(type(body[key]), 'a number')}")
    return body


def _count(text: str, what: str) -> int:
    """A number of rounds, or one of them; LocalError if it is none."""
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text)):
        raise LocalError(f"{what} must be a number of rounds, not '{text[:20]}'")
    return int(text)
