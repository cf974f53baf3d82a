"""The server: one model, one engine, OpenAI's routes; from its first to its last request."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from shoal.node.serve.answering import STALL
from shoal.node.serve.engine import WAITING, Engine
from shoal.node.serve.guard import Guard, errors_as_json
from shoal.node.serve.metrics import Metrics
from shoal.node.serve.routes import Routes
from shoal.node.serve.served import Served
from shoal.protocol.errors import LocalError, ShoalError

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
    listener = _listen(where)
    engine = Engine(served.scorer, served.codec, waiting=where.waiting)
    app = web.Application(middlewares=[errors_as_json, Guard(where.key, where.host).check], client_max_size=MAX_BODY)
    app.add_routes([*Routes(served, engine, where.stall).table(), *Metrics(engine).table()])
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=LAST_ANSWERS)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        yield int(listener.getsockname()[1])
    finally:
        await engine.stop()  # first: so streams end with the word that it stops
        await runner.cleanup()


async def serve(served: Served, where: Listening) -> None:
    """Until SIGINT or SIGTERM; SIGHUP has the source looked at again, if it is one that changes."""
    over = asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, over.set)
    async with serving(served, where) as port, looking_again(served):
        address = f"[{where.host}]" if ":" in where.host else where.host
        print(f"{served.name}: {served.sentence}; at http://{address}:{port}/v1", flush=True)
        await over.wait()


@asynccontextmanager
async def looking_again(served: Served) -> AsyncIterator[None]:
    """While the context is open, look at the source again at each SIGHUP; one that never changes needs none of this."""
    look_again = served.look_again
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
                print(f"{served.name}: {await asyncio.to_thread(look_again)}", flush=True)
            except ShoalError as error:
                log.warning("%s stays as it was: %s", served.name, error)
            except Exception:  # of a library, out of memory: what is served is whole
                log.exception("%s stays as it was", served.name)

    task = asyncio.create_task(live(), name="looking-again")
    try:
        yield
    finally:
        asyncio.get_running_loop().remove_signal_handler(CHANGED)
        task.cancel()
        await asyncio.wait([task])


def _listen(where: Listening) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server((address[0], where.port), family=family)
    except OSError as error:
        reason = error.strerror or error
        raise LocalError(f"cannot listen on --host {where.host}, --port {where.port}: {reason}") from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # those accepted inherit it
    return listener
