"""The HTTP server over one model: its socket, its life, and signals."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from shoal.node.api.listener import BoundedListener
from shoal.node.base.lines import say
from shoal.node.base.pools import LONG
from shoal.node.base.signals import on_ending
from shoal.node.inference.engine.engine import WAITING, Engine
from shoal.node.inference.http.answers import STALL
from shoal.node.inference.http.metrics import Metrics, text_metrics
from shoal.node.inference.http.middleware import Guard, errors_as_json, with_variants
from shoal.node.inference.http.routes import TextRoutes
from shoal.node.inference.served import Served
from shoal.protocol.base.errors import LocalError, ShoalError
from shoal.protocol.net.system.version import agent

MAX_BODY = 4 << 20
LAST_ANSWERS = 2.0  # seconds that the end waits for answers that are being sent
REREAD = getattr(signal, "SIGHUP", None)  # has the source read again; Windows does not have it
SEND_BUFFER = 256 << 10  # bytes of a stream that the kernel holds for a client that does not read

log = logging.getLogger("shoal.serve")


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """Where the server listens, and whom it serves."""

    host: str = "127.0.0.1"
    port: int = 8080  # 0: any free one
    key: str = ""  # that clients must show; empty: none
    waiting: int = WAITING  # sequences that may wait for a slot
    stall: float = STALL  # seconds for which a client may read nothing of a stream


@asynccontextmanager
async def serving(served: Served, where: ListenOptions) -> AsyncIterator[int]:
    """Serve a model that writes text while the context is open; yields the port."""
    listener = listen(where)
    engine = Engine(served.scorer, served.vocabulary, waiting=where.waiting)
    metrics, routes = Metrics(lambda: text_metrics(engine.load())), TextRoutes(served, engine, where.stall)
    async with running_app(listener, where, routes.table(), metrics, engine.stop) as port:
        yield port


@asynccontextmanager
async def running_app(
    listener: socket.socket,
    where: ListenOptions,
    table: Sequence[web.RouteDef],
    metrics: Metrics,
    stop: Callable[[], Awaitable[None]],
) -> AsyncIterator[int]:
    """Serve these routes while the context is open; yields the port. `stop` ends the engine behind them."""
    bounded, guard = BoundedListener(listener), Guard(where.key, where.host)
    guards = [bounded.note, metrics.count, errors_as_json, guard.check]
    app = web.Application(middlewares=guards, client_max_size=MAX_BODY)
    app.add_routes(with_variants([*table, *metrics.table()]))
    app.on_response_prepare.append(_sign)
    app.on_response_prepare.append(guard.share)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=LAST_ANSWERS)
    await runner.setup()
    try:
        await web.SockSite(runner, bounded).start()
        yield int(bounded.getsockname()[1])
    finally:
        await stop()  # before the rest, so that streams end with the error that the server stops
        await runner.cleanup()


async def _sign(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = agent()


async def serve(served: Served, where: ListenOptions) -> None:
    """Serve until the process is asked to end; SIGHUP has the source read again, if it can change."""
    rereading = rereading_on_signal(served.name, served.look_again)
    async with serving(served, where) as port, rereading, following(served):
        sentence = f"{served.name}: {served.sentence}"
        await until_asked_to_end(sentence, where, port, changes=served.look_again is not None)


async def until_asked_to_end(sentence: str, where: ListenOptions, port: int, *, changes: bool) -> None:
    """Print what is served, and where; return on a signal to end. SIGHUP is none if the source `changes`."""
    over = asyncio.Event()
    on_ending(lambda _: over.set(), but=(REREAD,) if changes and REREAD else ())
    address = f"[{where.host}]" if ":" in where.host else where.host
    say(f"{sentence}; at http://{address}:{port}/v1")
    await over.wait()


@asynccontextmanager
async def rereading_on_signal(name: str, look_again: Callable[[], str] | None) -> AsyncIterator[None]:
    """While the context is open, call `look_again` at each SIGHUP, unless it is None.

    There is no route for this: anyone who may change the folder may send a signal, while a route would need a
    permission of its own.
    """
    if look_again is None or REREAD is None:
        yield
        return
    changed = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(REREAD, changed.set)

    async def live() -> None:
        while True:
            await changed.wait()
            changed.clear()
            try:
                say(f"{name}: {await LONG.run(look_again)}")
            except ShoalError as error:
                log.warning("%s stays as it was: %s", name, error, extra={"code": "reload-failed"})
            except Exception:  # such as no memory, or a library's error: what is served is whole
                log.exception("%s stays as it was", name)

    task = asyncio.create_task(live(), name="looking-again")
    try:
        yield
    finally:
        asyncio.get_running_loop().remove_signal_handler(REREAD)
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def following(served: Served) -> AsyncIterator[None]:
    """While the context is open, run `served.follow` in a thread, if the source changes by itself."""
    if served.follow is None:
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=served.follow, args=(over,), name="following", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        await LONG.run(thread.join, LAST_ANSWERS)


def listen(where: ListenOptions) -> socket.socket:
    """A listening socket; LocalError if the address cannot be used."""
    try:
        family, *_, address = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server((address[0], where.port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise LocalError(
                f"port {where.port} of {where.host} is taken: choose another --port, or 0 for any free one",
                code="port-taken",
            ) from error
        reason = (error.strerror or str(error)).partition(" (while")[0]  # Python appends the address
        raise LocalError(
            f"cannot listen on --host {where.host}, --port {where.port}: {reason}", code="cannot-listen"
        ) from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # accepted sockets inherit it
    return listener
