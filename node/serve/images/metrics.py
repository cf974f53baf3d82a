"""What a server of pictures says of its load at /metrics, beside its requests."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from shoal.node.serve.images.painter import AT_ONCE, PaintLoad
from shoal.node.serve.metrics import Family, by_end


def of_pictures(load: PaintLoad) -> Iterator[Family]:
    """The load of a painter."""
    yield GaugeMetricFamily("shoal_serve_slots", "Pictures that are painted at once, at most.", AT_ONCE)
    yield GaugeMetricFamily("shoal_serve_slots_busy", "Pictures that are being painted.", load.busy)
    yield GaugeMetricFamily("shoal_serve_waiting", "Sequences, or pictures, that wait.", load.waiting)
    yield by_end("shoal_serve_pictures", "Pictures by how they ended.", load.finished, load.broken)
    yield CounterMetricFamily("shoal_serve_picture_steps", "Steps of the sampler, of each picture.", load.steps)
    yield CounterMetricFamily("shoal_serve_painting_seconds", "Seconds that these steps took.", load.seconds)
    yield CounterMetricFamily("shoal_serve_calls", "Calls, each of pictures painted together.", load.calls)
