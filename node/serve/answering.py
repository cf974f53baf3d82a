"""A request's way through the engine and back, in one piece or as a stream of server-sent events."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress

from aiohttp import web

from shoal.node.serve.engine import Engine
from shoal.node.serve.faults import fault_of
from shoal.node.serve.planning import Plan
from shoal.node.serve.sequence import Delta
from shoal.node.serve.shapes import Choice, Shape, Table, headers
from shoal.node.serve.ticket import Ticket
from shoal.protocol.errors import ShoalError

STALL = 20.0  # seconds for which a client may take nothing of a stream
EVENTS = {"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
DONE = b"data: [DONE]\n\n"

log = logging.getLogger("shoal.serve")


async def answer(engine: Engine, plan: Plan, shape: Shape) -> web.Response:
    """Everything at once. Whoever hangs up meanwhile has this cancelled, and the slots are free."""
    choices = [Choice() for _ in plan.jobs]
    ticket = engine.submit(plan.jobs)
    try:
        async for came in ticket.deltas():
            for place, delta in came:
                choices[place].add(delta)
    finally:
        ticket.cancel()
    return web.json_response(shape.whole(choices, plan.prompt_tokens), headers=headers(choices))


async def stream(
    engine: Engine, plan: Plan, shape: Shape, request: web.Request, *, tells_usage: bool, stall: float
) -> web.StreamResponse:
    """As it is made. A client that takes nothing for `stall` seconds is cut off."""
    ticket = engine.submit(plan.jobs)
    try:
        response = web.StreamResponse(headers=EVENTS)
        await response.prepare(request)
        with suppress(ConnectionError):  # the client is gone, and with it the reason to go on
            await _send(_Reader(request, response, stall), ticket, plan, shape, tells_usage)
            await response.write_eof()
        return response
    finally:
        ticket.cancel()


class _Reader:
    """The other end of a stream."""

    def __init__(self, request: web.Request, response: web.StreamResponse, stall: float) -> None:
        self._request, self._response, self._stall = request, response, stall

    async def take(self, data: bytes) -> None:
        """Write; ConnectionError if it is gone, or has taken nothing for too long."""
        try:
            async with asyncio.timeout(self._stall):
                await self._response.write(data)
        except TimeoutError as error:
            log.info("a client has taken nothing of its stream for %g s: it is cut off", self._stall)
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError("the client does not read") from error


async def _send(reader: _Reader, ticket: Ticket, plan: Plan, shape: Shape, tells_usage: bool) -> None:
    choices = [Choice() for _ in plan.jobs]
    try:
        async for came in ticket.deltas():
            events: list[Table] = []
            for place, delta in came:
                if not choices[place].version:
                    events += shape.opening(place, delta)
                choices[place].note(delta)
                if _says_any(delta):
                    events.append(shape.part(place, delta))
            await reader.take(b"".join(map(event, events)))
    except ShoalError as error:
        await reader.take(event(fault_of(error).body))
        return
    if tells_usage:
        await reader.take(event(shape.closing(choices, plan.prompt_tokens)))
    await reader.take(DONE)


def event(table: Table) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(table, separators=(",", ":")).encode() + b"\n\n"


def _says_any(delta: Delta) -> bool:
    """Whether it is worth an event."""
    return bool(delta.text or delta.facts or delta.finish)
