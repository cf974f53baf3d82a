"""The server's metrics at /metrics, for Prometheus: its requests, and its load."""

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
from shoal.node.inference.http.middleware import canonical_path

Family = GaugeMetricFamily | CounterMetricFamily

HUNG_UP = "499"  # stands for the status if the client left before the end of the answer
NO_ROUTE = "none"
SECONDS_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Metrics:
    """Counts requests as they come, and reads the load for each scrape."""

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
            buckets=SECONDS_BUCKETS,
        )

    def table(self) -> list[web.RouteDef]:
        """The route and its handler."""
        return [web.get("/metrics", self._answer)]

    def collect(self) -> Iterator[Family]:
        """For prometheus_client."""
        return self._load()

    @web.middleware
    async def count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The outermost middleware. Its labels are our own routes only, whatever paths are requested."""
        resource = request.match_info.route.resource
        route = NO_ROUTE if resource is None else canonical_path(resource.canonical)
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


def text_metrics(load: Load) -> Iterator[Family]:
    """The metrics of an engine's load."""
    yield GaugeMetricFamily("shoal_serve_slots", "Sequences that are written at once, at most.", load.slots)
    yield GaugeMetricFamily("shoal_serve_slots_busy", "Sequences that are being written.", load.busy)
    yield GaugeMetricFamily("shoal_serve_waiting", "Sequences, or pictures, that wait.", load.waiting)
    yield CounterMetricFamily("shoal_serve_tokens", "Tokens written.", load.tokens)
    yield metric_by_end("shoal_serve_sequences", "Sequences by how they ended.", load.finished, load.broken)


def metric_by_end(name: str, words: str, finished: int, broken: int) -> CounterMetricFamily:
    """A counter with the label `end`: how many were finished, and how many were not."""
    ends = CounterMetricFamily(name, words, labels=["end"])
    ends.add_metric(["finished"], finished)
    ends.add_metric(["broken"], broken)
    return ends
