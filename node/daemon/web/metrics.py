"""Metrics for Prometheus at `/metrics`, with names of the form shoal_<part>_<thing>_<unit|total>.

Rules: events are counted where they happen (`meters`); here the counts are only formatted, on request. The label `run`
is the whole id of a run, and no label names another peer, so that the number of series is bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from shoal.node.api.answers import Answer, Dht, RunMetrics, RunRow
from shoal.node.api.service import NodeService
from shoal.node.api.status import label
from shoal.node.run.node_state import STATES
from shoal.protocol.base.paths import PATHS


class Metrics:
    """The route of the metrics, and their collector."""

    def __init__(self, service: NodeService) -> None:
        self._service = service
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def table(self) -> list[web.RouteDef]:
        """The route of the metrics."""
        return [web.get("/metrics", self._show)]

    async def _show(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def collect(self) -> Iterator[Metric]:
        """For the registry: all metrics with their current values."""
        status = self._service.status()
        yield InfoMetricFamily("shoal_node", "Which node this is.", {key: status[key] for key in ("version", "peer")})
        yield _gauge("shoal_node_alone", "1 if the node is SOLO: it sees no other peer.", status["state"] == "SOLO")
        yield _gauge(
            "shoal_node_split", "1 if the swarm has come apart, as seen from here.", status["state"] == "SPLIT"
        )
        yield _states(status["state"])
        yield from _limits(status)
        yield _paths(self._service.peers())
        yield from _dht(status["dht"])
        yield from _runs(status["runs"])
        meters = self._service.meters()
        yield from _rounds(meters)
        yield from _bytes(meters)


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help, float(value))


def _states(now: str) -> Metric:
    family = GaugeMetricFamily("shoal_node_state", "1 for the state that the node is in.", labels=["state"])
    for state in STATES:
        family.add_metric([state], state == now)
    return family


def _limits(status: Answer) -> Iterator[Metric]:
    """All bytes on the wire, and the owner's limits; no sample where there is no limit."""
    limits, traffic = status["limits"], status["traffic"]
    help = "All bytes on the wire since the node started, headers included."
    wire = CounterMetricFamily("shoal_node_wire_bytes", help, labels=["direction"])
    rates = GaugeMetricFamily("shoal_node_max_bytes_per_second", "What the owner lets pass.", labels=["direction"])
    for direction, key in (("sent", "max_up"), ("received", "max_down")):
        wire.add_metric([direction], traffic[direction])
        if limits[key] is not None:
            rates.add_metric([direction], limits[key])
    yield wire
    yield rates
    if limits["max_per_day"] is not None:
        yield _gauge("shoal_node_max_bytes_per_day", "What the owner lets pass a day.", limits["max_per_day"])
        yield _gauge("shoal_node_used_today_bytes", "How much of that has passed today (UTC).", limits["used_today"])
    yield _gauge("shoal_node_paused", "1 while the node is paused, for whatever reason.", status["paused"] is not None)


def _paths(peers: Iterable[Answer]) -> Metric:
    """Connected peers by path; each is counted once, even if it is in several of our runs."""
    paths = Counter({peer["peer"]: peer["path"] for peer in peers if peer["path"] is not None}.values())
    family = GaugeMetricFamily("shoal_network_peers", "Peers with a connection, by how it runs.", labels=["path"])
    for path in sorted({*PATHS, *paths}):
        family.add_metric([path], paths[path])
    return family


def _dht(dht: Dht) -> Iterator[Metric]:
    yield _gauge("shoal_dht_servers", "Servers of the DHT that this node knows.", dht["servers"])
    yield _gauge("shoal_dht_serving", "1 if others may store with this node; it must be reachable.", dht["serves"])
    yield _gauge("shoal_dht_records", "Records that this node holds for others.", dht["records"])


def _runs(rows: Sequence[RunRow]) -> Iterator[Metric]:
    info = InfoMetricFamily("shoal_run", "The runs of this node.", labels=["run"])
    for row in rows:
        info.add_metric([row["run"]], {"name": label(row)})
    yield info
    gauges = {
        "loss": ("loss", "Training loss on this node, the latest that is known."),
        "validation_loss": (
            "validation_loss",
            "Validation loss of a committed state, the newest that was measured on this node.",
        ),
        "validation_round": ("validation_round", "The round after which the state had that validation loss."),
        "members": ("members", "Live members of the run, this node included."),
        "round": ("round", "The last round that was applied here."),
        "branches": ("branches", "How often the run has gone on without a quorum of its voters."),
        "tokens_per_second": ("tokens_per_second", "How fast this node trains."),
        "utilisation": ("utilisation", "The share of its time in which this node's worker trains."),
        "model_flops_utilization": (
            "model_flops_utilization",
            "The share of what its device could compute that this node's training takes.",
        ),
    }
    for name, (key, help) in gauges.items():
        yield _per_run(GaugeMetricFamily(f"shoal_run_{name}", help, labels=["run"]), rows, key)


def _rounds(meters: Sequence[RunMetrics]) -> Iterator[Metric]:
    samples = "Tokens behind the rounds that were committed here, of all members."
    yield _per_run(CounterMetricFamily("shoal_run_samples", samples, labels=["run"]), meters, "samples")
    counted = "Members whose contribution is in every chunk of the last round."
    yield _per_run(GaugeMetricFamily("shoal_round_participants", counted, labels=["run"]), meters, "participants")
    active = "1 while rounds of the run are to come, also if it has failed on this node."
    yield _per_run(GaugeMetricFamily("shoal_run_active", active, labels=["run"]), meters, "active")
    stuck = "1 while the members that are here can decide nothing, as too many voters are away."
    yield _per_run(GaugeMetricFamily("shoal_run_lacks_quorum", stuck, labels=["run"]), meters, "lacks_quorum")
    when = "When the last round was applied here, or the run was joined, in seconds since 1970."
    family = GaugeMetricFamily("shoal_round_last_commit_timestamp_seconds", when, labels=["run"])
    yield _per_run(family, meters, "last_commit")
    yield _durations(meters)
    why = "Rounds that came to nothing: their results were undone, as all disks had lost them."
    failures = CounterMetricFamily("shoal_round_failures", why, labels=["run", "reason"])
    for each in meters:
        for reason, count in each["failures"].items():
            failures.add_metric([each["run"], reason], count)
    yield failures
    ends = "Rounds of this node's replica, by how they ended: an exchange, or why there was none."
    exchanges = CounterMetricFamily("shoal_replica_rounds", ends, labels=["run", "end"])
    for each in meters:
        for end, count in each["exchanges"].items():
            exchanges.add_metric([each["run"], end], count)
    yield exchanges


def _durations(meters: Sequence[RunMetrics]) -> Metric:
    help = "Committed rounds that this node took part in, from its own readiness to the applied result."
    family = HistogramMetricFamily("shoal_round_duration_seconds", help, labels=["run"])
    for each in meters:
        total, buckets = 0, []
        for bound, count in each["durations"]:
            total += count
            buckets.append(("+Inf" if bound is None else str(bound), float(total)))
        family.add_metric([each["run"]], buckets, each["seconds"])
    return family


def _bytes(meters: Sequence[Answer]) -> Iterator[Metric]:
    labels = ["run", "direction", "class"]
    traffic = CounterMetricFamily("shoal_network_bytes", "Bytes on the network, framing included.", labels=labels)
    help = "Bytes of model and optimizer state, to joiners and from donors."
    sync = CounterMetricFamily("shoal_state_sync_bytes", help, labels=["run", "direction"])
    help = "Bytes of payloads, by the path that they took."
    paths = CounterMetricFamily("shoal_network_bulk_bytes", help, labels=["run", "direction", "path"])
    for each in meters:
        for path, directions in each["bulk"].items():
            for direction, count in directions.items():
                paths.add_metric([each["run"], direction, path], count)
        for kind, directions in each["bytes"].items():
            for direction, count in directions.items():
                traffic.add_metric([each["run"], direction, kind], count)
        for direction, count in each["sync"].items():
            sync.add_metric([each["run"], direction], count)
    yield traffic
    yield paths
    yield sync


def _per_run(family: GaugeMetricFamily | CounterMetricFamily, rows: Sequence[Answer], key: str) -> Metric:
    """One sample per run in which the value is known."""
    for row in rows:
        if row[key] is not None:
            family.add_metric([row["run"]], row[key])
    return family
