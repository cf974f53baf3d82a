"""What the server says of itself at /metrics, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from shoal.node.serve.engine import Engine

Family = GaugeMetricFamily | CounterMetricFamily


class Metrics:
    """The engine's load, read anew for each scrape."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def table(self) -> list[web.RouteDef]:
        """The route."""
        return [web.get("/metrics", self._answer)]

    def collect(self) -> Iterator[Family]:
        """For prometheus_client."""
        load = self._engine.load()
        yield GaugeMetricFamily("shoal_serve_slots", "Sequences that are written at once, at most.", load.slots)
        yield GaugeMetricFamily("shoal_serve_slots_busy", "Sequences that are being written.", load.busy)
        yield GaugeMetricFamily("shoal_serve_waiting", "Sequences that wait for a slot.", load.waiting)
        yield CounterMetricFamily("shoal_serve_tokens", "Tokens written.", load.tokens)
        ends = CounterMetricFamily("shoal_serve_sequences", "Sequences by how they ended.", labels=["end"])
        ends.add_metric(["finished"], load.finished)
        ends.add_metric(["broken"], load.broken)
        yield ends

    async def _answer(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
