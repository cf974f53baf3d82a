"""What the server says of itself at /metrics, for Prometheus: how its requests went, and how much there is to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from shoal.node.api.http import Handler
from shoal.node.inference.engine.engine import Load
from shoal.node.inference.http.middleware import usual

Family = GaugeMetricFamily | CounterMetricFamily

HUNG_UP = "499"  # instead of a status, where the client was gone before the answer was whole
NO_ROUTE = "none"
SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Metrics:
    """Requests are counted as they come; the load is read anew for each scrape."""

    def __init__(self, load: Callable[[], Iterator[Family]]) -> None:
        self._load = load
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self._requests = Counter(
            "shoal_serve_requests", "Requests by route and HTTP status.", ["route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "shoal_serve_request_seconds",
            "From a request to the end of its answer.",
            ["route"],
            registry=self._registry,
            buckets=SECONDS,
        )

    def table(self) -> list[web.RouteDef]:
        """The route."""
        return [web.get("/metrics", self._answer)]

    def collect(self) -> Iterator[Family]:
        """For prometheus_client."""
        return self._load()

    @web.middleware
    async def count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The middleware in front of all others. There are as many routes as we have, whatever is asked for."""
        resource = request.match_info.route.resource
        route = NO_ROUTE if resource is None else usual(resource.canonical)
        began, status = time.monotonic(), "500"
        try:
            response = await handler(request)
            status = str(response.status)
            return response
        except asyncio.CancelledError:
            status = HUNG_UP
            raise
        finally:
            self._requests.labels(route, status).inc()
            self._seconds.labels(route).observe(time.monotonic() - began)

    async def _answer(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


def of_texts(load: Load) -> Iterator[Family]:
    """The load of an engine."""
    yield GaugeMetricFamily("shoal_serve_slots", "Sequences that are written at once, at most.", load.slots)
    yield GaugeMetricFamily("shoal_serve_slots_busy", "Sequences that are being written.", load.busy)
    yield GaugeMetricFamily("shoal_serve_waiting", "Sequences, or pictures, that wait.", load.waiting)
    yield CounterMetricFamily("shoal_serve_tokens", "Tokens written.", load.tokens)
    yield by_end("shoal_serve_sequences", "Sequences by how they ended.", load.finished, load.broken)


def by_end(name: str, words: str, finished: int, broken: int) -> CounterMetricFamily:
    """How many came to their end, and how many did not."""
    ends = CounterMetricFamily(name, words, labels=["end"])
    ends.add_metric(["finished"], finished)
    ends.add_metric(["broken"], broken)
    return ends
