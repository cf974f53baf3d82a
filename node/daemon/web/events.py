"""The events of the live page: a snapshot a second to every open page, as server-sent events.

Rules: the number of streams is bounded. A reader that does not keep up is cut off, and starts afresh when its browser
reconnects. When nothing changes, a beat tells the page that the node is alive. The first event has all past points.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from aiohttp import web

from shoal.node.api.http import failure
from shoal.node.api.service import NodeService
from shoal.node.daemon.web.actions import PageActions
from shoal.node.daemon.web.recorder import Recorder

EVERY = 1.0  # seconds between two snapshots
BEAT = 5.0  # seconds without an event, at most
MAX_STREAMS = 16
MAX_WAITING = 8  # events that may be queued for a reader
STALL = 10.0  # seconds that writing one event may take
RETRY = 2000  # milliseconds after which a browser reconnects

log = logging.getLogger("shoal.api")

Stream = asyncio.Queue[bytes | None]  # the events for one reader; None ends the stream


class Events:
    """Takes a snapshot of the node once a second and sends it to all streams."""

    def __init__(self, service: NodeService, actions: PageActions) -> None:
        self._recorder, self._actions = Recorder(service), actions
        self._streams: set[Stream] = set()
        self._seen: dict[str, Any] = {}  # the last snapshot
        self._told_at = 0.0
        self._is_failing = False

    def table(self) -> list[web.RouteDef]:
        """The route of the events."""
        return [web.get("/v1/events", self._serve)]

    async def running(self, app: web.Application) -> AsyncIterator[None]:
        """For `cleanup_ctx`: take and send snapshots while the application serves."""
        task = asyncio.create_task(self._run())
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def hang_up(self, app: web.Application) -> None:
        """For `on_shutdown`: end all streams, or the server would wait for them."""
        for stream in list(self._streams):
            self._drop(stream)

    async def _run(self) -> None:
        while True:
            try:
                self._look(time.time())
                self._is_failing = False
            except Exception:  # a bug: the pages stand still, the runs go on
                if not self._is_failing:  # log it once
                    log.exception("the page cannot be kept up to date")
                self._is_failing = True
            await asyncio.sleep(EVERY)

    def _look(self, now: float) -> None:
        """Send a snapshot if something has changed, or a beat if one is due."""
        seen = self._snapshot(now)
        if seen != self._seen:
            self._tell(_event("snapshot", {"now": now, **seen}), now)
        elif now - self._told_at >= BEAT:
            self._tell(_event("beat", {"now": now}), now)
        self._seen = seen

    def _snapshot(self, now: float) -> dict[str, Any]:
        return {**self._recorder.look(now), "actions": self._actions.recent()}

    def _tell(self, event: bytes, now: float) -> None:
        self._told_at = now
        for stream in list(self._streams):
            if stream.qsize() >= MAX_WAITING:
                self._drop(stream)
            else:
                stream.put_nowait(event)

    def _drop(self, stream: Stream) -> None:
        self._streams.discard(stream)
        while not stream.empty():
            stream.get_nowait()
        stream.put_nowait(None)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if len(self._streams) >= MAX_STREAMS:
            return failure(503, f"{MAX_STREAMS} pages are open already: close one", "busy")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        stream: Stream = asyncio.Queue()
        self._streams.add(stream)
        stream.put_nowait(self._first(time.time()))
        try:
            await response.prepare(request)
            while (event := await stream.get()) is not None:
                async with asyncio.timeout(STALL):
                    await response.write(event)
        except (ConnectionError, TimeoutError):
            pass  # the reader is gone, or does not read
        finally:
            self._streams.discard(stream)
        if request.transport is not None:
            request.transport.abort()  # unread data would delay the end of the server
        return response

    def _first(self, now: float) -> bytes:
        seen = self._seen or self._snapshot(now)
        return b"retry: %d\n" % RETRY + _event("snapshot", {"now": now, **seen, "curves": self._recorder.past()})


def _event(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'), allow_nan=False)}\n\n".encode()
