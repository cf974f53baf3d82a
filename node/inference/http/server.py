"""The server: one model, one engine, OpenAI's routes; from its first to its last request."""

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
from shoal.node.inference.http.metrics import Metrics, of_texts
from shoal.node.inference.http.middleware import Guard, errors_as_json, spellings
from shoal.node.inference.http.routes import Routes
from shoal.node.inference.served import Served
from shoal.protocol.base.errors import LocalError, ShoalError
from shoal.protocol.net.system.version import agent

MAX_BODY = 4 << 20
LAST_ANSWERS = 2.0  # seconds that the end waits for answers that are on their way
CHANGED = getattr(signal, "SIGHUP", None)  # says that the source is to be looked at again; Windows has none
SEND_BUFFER = 256 << 10  # bytes of a stream that the kernel holds for who does not read

log = logging.getLogger("shoal.serve")


@dataclass(frozen=True, slots=True)
class Listening:
    """Where, and for whom."""

    host: str = "127.0.0.1"
    port: int = 8080  # 0: any free one
    key: str = ""  # that clients show; empty: none
    waiting: int = WAITING  # sequences
    stall: float = STALL  # seconds


@asynccontextmanager
async def serving(served: Served, where: Listening) -> AsyncIterator[int]:
    """Serve while the context is open; gives the port."""
    listener = listen(where)
    engine = Engine(served.scorer, served.vocabulary, waiting=where.waiting)
    metrics, routes = Metrics(lambda: of_texts(engine.load())), Routes(served, engine, where.stall)
    async with answering(listener, where, routes.table(), metrics, engine.stop) as port:
        yield port


@asynccontextmanager
async def answering(
    listener: socket.socket,
    where: Listening,
    table: Sequence[web.RouteDef],
    metrics: Metrics,
    stop: Callable[[], Awaitable[None]],
) -> AsyncIterator[int]:
    """Answer at the routes while the context is open; gives the port. `stop` ends what makes the answers."""
    bounded, guard = BoundedListener(listener), Guard(where.key, where.host)
    guards = [bounded.note, metrics.count, errors_as_json, guard.check]
    app = web.Application(middlewares=guards, client_max_size=MAX_BODY)
    app.add_routes(spellings([*table, *metrics.table()]))
    app.on_response_prepare.append(_sign)
    app.on_response_prepare.append(guard.share)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=LAST_ANSWERS)
    await runner.setup()
    try:
        await web.SockSite(runner, bounded).start()
        yield int(bounded.getsockname()[1])
    finally:
        await stop()  # first: so streams end with the word that it stops
        await runner.cleanup()


async def _sign(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = agent()


async def serve(served: Served, where: Listening) -> None:
    """Until asked to end; SIGHUP has the source looked at again, if it is one that changes."""
    async with serving(served, where) as port, looking_again(served.name, served.look_again), following(served):
        await until_told(f"{served.name}: {served.sentence}", where, port, changes=served.look_again is not None)


async def until_told(sentence: str, where: Listening, port: int, *, changes: bool) -> None:
    """Say what is served, and where; return when asked to end, which SIGHUP does not do if the source `changes`."""
    over = asyncio.Event()
    on_ending(lambda _: over.set(), but=(CHANGED,) if changes and CHANGED else ())
    address = f"[{where.host}]" if ":" in where.host else where.host
    say(f"{sentence}; at http://{address}:{port}/v1")
    await over.wait()


@asynccontextmanager
async def looking_again(name: str, look_again: Callable[[], str] | None) -> AsyncIterator[None]:
    """While the context is open, look at the source again at each SIGHUP; one that never changes needs none of this.

    No route does that: whoever may change the folder may send a signal, and a route would need a right of its own.
    """
    if look_again is None or CHANGED is None:
        yield
        return
    changed = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(CHANGED, changed.set)

    async def live() -> None:
        while True:
            await changed.wait()
            changed.clear()
            try:
                say(f"{name}: {await LONG.run(look_again)}")
            except ShoalError as error:
                log.warning("%s stays as it was: %s", name, error)
            except Exception:  # of a library, out of memory: what is served is whole
                log.exception("%s stays as it was", name)

    task = asyncio.create_task(live(), name="looking-again")
    try:
        yield
    finally:
        asyncio.get_running_loop().remove_signal_handler(CHANGED)
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def following(served: Served) -> AsyncIterator[None]:
    """While the context is open, a thread goes after what changes the source, if it is one that changes by itself."""
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


def listen(where: Listening) -> socket.socket:
    """A socket there; LocalError if it cannot be had."""
    try:
        family, *_, address = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server((address[0], where.port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise LocalError(
                f"port {where.port} of {where.host} is taken: choose another --port, or 0 for any free one"
            ) from error
        reason = (error.strerror or str(error)).partition(" (while")[0]  # Python adds the address, which is said anyway
        raise LocalError(f"cannot listen on --host {where.host}, --port {where.port}: {reason}") from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # those accepted inherit it
    return listener
