"""The admin API: a node's answers as JSON over HTTP, for its owner on this machine.

Rules: it listens on 127.0.0.1 unless told otherwise; every call shows the token of the home folder; a Host
header that is a foreign name is refused (a web page could point its own name at us: DNS rebinding), and no
CORS header is ever sent; bodies are bounded. Errors say whose fault they are:

    400 the caller's     401 no or a wrong token    403 a foreign Host    404 no such run or route
    413 body too large   500 our own mistake        502 a peer's or the network's
"""

from __future__ import annotations

import errno
import hmac
import ipaddress
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from shoal.node.logs import warn
from shoal.node.service import NodeService, UnknownRun
from shoal.node.version import shoal_version
from shoal.protocol.errors import LocalError, RemoteError, ShoalError, TransportError

MAX_BODY = 256 << 10
PORTS_TRIED = 100
VERSION_HEADER = "Shoal-Version"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
log = logging.getLogger("shoal.api")


@asynccontextmanager
async def serve_api(service: NodeService, token: str, host: str, port: int) -> AsyncIterator[tuple[str, int]]:
    """Serve while the context is open; gives host and port, the next free one if `port` is taken."""
    listener = _listen(host, port)
    actual = int(listener.getsockname()[1])
    if port not in (0, actual):
        warn(log, "admin-port-taken", f"admin port {port} is taken; the API listens on {actual}")
    runner = web.AppRunner(make_app(service, token, host), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        yield host, actual
    finally:
        await runner.cleanup()


def make_app(service: NodeService, token: str, host: str) -> web.Application:
    """The routes over `service`."""
    routes = _Routes(service)
    app = web.Application(middlewares=[_errors_as_json, _guard(token, host)], client_max_size=MAX_BODY)
    app.add_routes(
        [
            web.get("/v1/status", routes.status),
            web.get("/v1/peers", routes.peers),
            web.get("/v1/runs", routes.runs),
            web.post("/v1/runs", routes.create_run),
            web.get("/v1/runs/{run}", routes.run_details),
            web.get("/v1/runs/{run}/rounds", routes.rounds),
            web.post("/v1/runs/{run}/join", routes.join_run),
            web.post("/v1/runs/{run}/leave", routes.leave_run),
            web.post("/v1/runs/{run}/save", routes.save_state),
            web.post("/v1/stop", routes.stop),
        ]
    )
    return app


class _Routes:
    """One short method per route: read the request, ask the service, answer."""

    def __init__(self, service: NodeService) -> None:
        self._service = service

    async def status(self, request: web.Request) -> web.Response:
        return web.json_response(self._service.status())

    async def peers(self, request: web.Request) -> web.Response:
        return web.json_response(self._service.peers())

    async def runs(self, request: web.Request) -> web.Response:
        return web.json_response(self._service.status()["runs"])

    async def run_details(self, request: web.Request) -> web.Response:
        return web.json_response(self._service.run_details(request.match_info["run"]))

    async def rounds(self, request: web.Request) -> web.Response:
        return web.json_response(self._service.rounds(request.match_info["run"]))

    async def create_run(self, request: web.Request) -> web.Response:
        body = await _body(request, {"manifest": str, "train": bool}, {"checkpoint": str})
        created = await self._service.create_run(body["manifest"], body["train"], body.get("checkpoint", ""))
        return web.json_response(created)

    async def join_run(self, request: web.Request) -> web.Response:
        body = await _body(request, {"train": bool}, {"checkpoint": str})
        run, checkpoint = request.match_info["run"], body.get("checkpoint", "")
        return web.json_response(await self._service.join_run(run, body["train"], checkpoint))

    async def leave_run(self, request: web.Request) -> web.Response:
        await _body(request, {})
        return web.json_response(await self._service.leave_run(request.match_info["run"]))

    async def save_state(self, request: web.Request) -> web.Response:
        body = await _body(request, {"path": str})
        return web.json_response(await self._service.save_state(request.match_info["run"], body["path"]))

    async def stop(self, request: web.Request) -> web.Response:
        await _body(request, {})
        await self._service.stop()
        return web.json_response({"stopping": True}, status=202)


async def _body(
    request: web.Request, fields: dict[str, type], optional: dict[str, type] | None = None
) -> dict[str, Any]:
    """The request's JSON object, with these fields of these types, and perhaps the optional ones, but no others."""
    try:
        body = await request.json()
    except ValueError as error:
        raise LocalError(f"the body is not JSON: {error}") from error
    except RecursionError as error:
        raise LocalError("the body is nested too deeply") from error
    if not isinstance(body, dict):
        raise LocalError("the body must be a JSON object")
    allowed = {**fields, **(optional or {})}
    for key, kind in {key: kind for key, kind in allowed.items() if key in fields or key in body}.items():
        if type(body.get(key)) is not kind:
            raise LocalError(f"the body's '{key}' must be a {kind.__name__}")
    if unknown := body.keys() - allowed.keys():
        raise LocalError(f"unknown key '{min(unknown)}' in the body")
    return body


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        response = await handler(request)
    except web.HTTPException as error:
        response = _failure(error.status, error.reason)
    except UnknownRun as error:
        response = _failure(404, str(error))
    except RemoteError as error:
        response = _failure(502, str(error), blame="peer")
    except TransportError as error:
        response = _failure(502, str(error), blame="network")
    except ShoalError as error:
        response = _failure(400, str(error))
    except Exception:
        log.exception("the API failed on %s %s", request.method, request.path)
        response = _failure(500, "the node made a mistake; its log has the details", blame="node")
    response.headers[VERSION_HEADER] = shoal_version()
    return response


def _failure(status: int, message: str, blame: str = "caller") -> web.Response:
    return web.json_response({"error": message, "blame": blame}, status=status)


def _guard(token: str, host: str) -> Any:
    expected = f"Bearer {token}".encode()

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not _host_allowed(request.headers.get("Host", ""), host):
            return _failure(403, "the Host header is a foreign name; call the API by its address")
        shown = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(shown, expected):
            return _failure(401, "show the token of the node's home folder: `Authorization: Bearer <token>`")
        return await handler(request)

    return guard


def _host_allowed(header: str, host: str) -> bool:
    """Addresses cannot be rebound, names can: only `localhost` and the name that we listen on are ours."""
    name = header.rpartition(":")[0] if header.rpartition(":")[2].isdigit() else header
    name = name.removeprefix("[").removesuffix("]").lower()
    if name in ("localhost", host.lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket on `port`, or the next free one."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise LocalError(f"--admin-host {host} is no address of this machine: {error.strerror}") from error
    for candidate in range(port, min(port + PORTS_TRIED, 65536)):
        try:
            return socket.create_server((address[0], candidate), family=family)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                reason = os.strerror(error.errno or 0)
                raise LocalError(f"--admin-host {host}, port {candidate}: cannot listen: {reason}") from error
    raise LocalError(f"admin ports {port} to {port + PORTS_TRIED - 1} are all taken: use --admin-port")
