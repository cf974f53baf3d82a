"""The admin port: the JSON API, the page and the metrics, for the node's owner on this machine.

Rules: it listens on 127.0.0.1 unless told otherwise; `web/session.py` decides who may call; no CORS header is sent;
bodies are bounded. The operations are those of node/api/operations.py. Errors say whose fault they are:

    400 the caller's         401 no or a wrong token    403 a foreign Host or page    404 no such run, round or route
    413 body too large       429 too many wrong tokens  503 too many open pages
    500 a bug                502 a peer's or the network's   507 no room on this machine
"""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from shoal.node.api.http import add_headers, errors_as_json
from shoal.node.api.listener import BoundedListener
from shoal.node.api.service import NodeService
from shoal.node.base.logs import warn
from shoal.node.daemon.web.actions import PageActions
from shoal.node.daemon.web.events import Events
from shoal.node.daemon.web.metrics import Metrics
from shoal.node.daemon.web.routes import routes
from shoal.node.daemon.web.session import AccessControl
from shoal.protocol.base.errors import LocalError, TransportError
from shoal.protocol.net.system.resolving import RESOLVER

MAX_BODY = 256 << 10
PAGE = Path(__file__).parent.parent / "page"  # plain HTML, CSS and JavaScript; it holds no secret
REVALIDATE = {"Cache-Control": "no-cache"}  # a browser checks each time whether its copy is current
PORTS_TRIED = 100
LAST_ANSWERS = 1.0  # seconds for which the end waits for responses that are being sent

log = logging.getLogger("shoal.api")


@asynccontextmanager
async def serve_api(service: NodeService, token: str, host: str, port: int) -> AsyncIterator[tuple[str, int]]:
    """Serve while the context is open; yields host and port, which is the next free one if `port` is taken."""
    listener = BoundedListener(await _listen(host, port))
    actual = int(listener.getsockname()[1])
    if port not in (0, actual):
        warn(log, "admin-port-taken", f"admin port {port} is taken; the API listens on {actual}")
    app = make_app(service, token, host)
    app.middlewares.insert(0, listener.note)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=LAST_ANSWERS)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        yield host, actual
    finally:
        await runner.cleanup()


def make_app(service: NodeService, token: str, host: str) -> web.Application:
    """The application: API, page, events and metrics of `service`."""
    actions = PageActions()
    access = AccessControl(token, str(service.status()["peer"]), host, actions)
    events = Events(service, actions)
    app = web.Application(middlewares=[errors_as_json, access.guard], client_max_size=MAX_BODY)
    app.add_routes(routes([*service.handlers(), *access.handlers()]))
    app.add_routes([*Metrics(service).table(), *access.table(), *events.table()])
    app.add_routes([web.get("/", _index), web.get("/page/{file:[A-Za-z0-9./-]+}", _file)])
    app.on_response_prepare.append(add_headers)
    app.cleanup_ctx.append(events.running)
    app.on_shutdown.append(events.hang_up)
    return app


async def _index(request: web.Request) -> web.StreamResponse:
    return web.FileResponse(PAGE / "index.html", headers=REVALIDATE)


async def _file(request: web.Request) -> web.StreamResponse:
    path = (PAGE / request.match_info["file"]).resolve()
    if not path.is_relative_to(PAGE.resolve()) or not path.is_file():
        raise web.HTTPNotFound
    return web.FileResponse(path, headers=REVALIDATE)


async def _listen(host: str, port: int) -> socket.socket:
    """A listening socket on `port`, or the next free one."""
    try:
        family, address = (await RESOLVER.look_up(host))[0]
    except TransportError as error:
        raise LocalError(f"--admin-host {host} is no address of this machine: {error}", code="cannot-listen") from error
    last = min(port + PORTS_TRIED, 65536) - 1
    for candidate in range(port, last + 1):
        try:
            return socket.create_server((address, candidate), family=family)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                reason = os.strerror(error.errno or 0)
                raise LocalError(
                    f"--admin-host {host}, port {candidate}: cannot listen: {reason}; choose an address of this "
                    "machine and a port that this user may have",
                    code="cannot-listen",
                ) from error
    raise LocalError(f"admin ports {port} to {last} are all taken: use --admin-port", code="port-taken")
