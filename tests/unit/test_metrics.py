"""`/metrics`: the promised names with the numbers of the node, in the format that Prometheus reads."""

from __future__ import annotations

import re
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from shoal.node.daemon.web.metrics import Metrics
from shoal.node.daemon.web.server import serve_api
from shoal.node.run.meters import BOUNDS, Meters
from shoal.node.run.view import broken_row
from shoal.protocol.messages.transfer import GetStateChunk, StateChunk
from tests.fake_service import PEER, RUN, FakeService

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def scrape(service: FakeService) -> tuple[str, Samples]:
    async with serve_api(service, "token", "127.0.0.1", 0) as (host, port), aiohttp.ClientSession() as http:
        url = f"http://{host}:{port}/metrics"
        assert (await http.get(url)).status == 401
        async with http.get(url, headers={"Authorization": "Bearer token"}) as response:
            assert response.status == 200
            assert response.headers["Content-Type"].startswith("text/plain; version=")
            text = await response.text()
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return text, {(each.name, tuple(sorted(each.labels.items()))): each.value for each in found}


@pytest.mark.asyncio
async def test_every_promised_metric_has_the_nodes_number() -> None:
    _, samples = await scrape(FakeService())
    run = ("run", RUN)
    assert {
        ("shoal_run_loss", (run,)): 1.25,
        ("shoal_run_validation_loss", (run,)): 1.5,
        ("shoal_run_validation_round", (run,)): 2.0,
        ("shoal_run_tokens_per_second", (run,)): 900.0,
        ("shoal_run_utilisation", (run,)): 0.875,
        ("shoal_run_model_flops_utilization", (run,)): 0.375,
        ("shoal_run_members", (run,)): 4.0,
        ("shoal_run_branches", (run,)): 1.0,
        ("shoal_run_lacks_quorum", (run,)): 0.0,
        ("shoal_run_active", (run,)): 1.0,
        ("shoal_run_samples_total", (run,)): 2048.0,
        ("shoal_round_participants", (run,)): 3.0,
        ("shoal_round_last_commit_timestamp_seconds", (run,)): 1.7e9,
        ("shoal_round_duration_seconds_count", (run,)): 1.0,
        ("shoal_round_duration_seconds_sum", (run,)): 0.25,
        ("shoal_round_duration_seconds_bucket", (("le", "0.1"), run)): 0.0,
        ("shoal_round_duration_seconds_bucket", (("le", "0.25"), run)): 1.0,
        ("shoal_round_duration_seconds_bucket", (("le", "+Inf"), run)): 1.0,
        ("shoal_round_failures_total", (("reason", "voided"), run)): 1.0,
        ("shoal_network_bytes_total", (("class", "bulk"), ("direction", "received"), run)): 40.0,
        ("shoal_network_bytes_total", (("class", "control"), ("direction", "sent"), run)): 1.0,
        ("shoal_network_bulk_bytes_total", (("direction", "sent"), ("path", "relayed"), run)): 10.0,
        ("shoal_state_sync_bytes_total", (("direction", "received"), run)): 0.0,
        ("shoal_network_peers", (("path", "direct"),)): 1.0,
        ("shoal_network_peers", (("path", "relayed"),)): 0.0,
        ("shoal_node_wire_bytes_total", (("direction", "received"),)): 2000.0,
        ("shoal_node_max_bytes_per_second", (("direction", "sent"),)): 2.5e6,
        ("shoal_node_max_bytes_per_day", ()): 20e9,
        ("shoal_node_used_today_bytes", ()): 19.5e9,
        ("shoal_node_paused", ()): 0.0,
        ("shoal_node_alone", ()): 0.0,
        ("shoal_node_state", (("state", "CONNECTED"),)): 1.0,
        ("shoal_node_state", (("state", "SOLO"),)): 0.0,
        ("shoal_node_state", (("state", "IN-ROUND"),)): 0.0,
        ("shoal_node_state", (("state", "SPLIT"),)): 0.0,
    }.items() <= samples.items()


@pytest.mark.asyncio
async def test_names_and_labels_keep_the_rules() -> None:
    text, samples = await scrape(FakeService())
    own = {name for name, _ in samples if not name.startswith("process_")}
    assert all(re.fullmatch(r"shoal_(dht|node|network|run|round|state)_[a-z_]+", name) for name in own)
    labels = {label for _, pairs in samples for label, _ in pairs}
    assert labels <= {"run", "path", "state", "direction", "class", "reason", "le", "name", "version", "peer"}
    assert set(re.findall(r'peer="([^"]+)"', text)) == {PEER}  # this node's own: no series per peer
    helped = set(re.findall(r"^# HELP (\S+) \S", text, flags=re.MULTILINE))
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in own} <= helped


@pytest.mark.asyncio
async def test_a_run_that_cannot_be_entered_again_has_its_id_for_a_name() -> None:
    service = FakeService()
    service.not_open = [broken_row("12" * 32, "its record is damaged")]
    _, samples = await scrape(service)
    assert samples["shoal_run_info", (("name", "12121212"), ("run", "12" * 32))] == 1.0
    assert ("shoal_run_members", (("run", "12" * 32),)) not in samples


@pytest.mark.asyncio
async def test_what_is_not_known_has_no_sample_and_solo_is_an_alarm() -> None:
    service = FakeService()
    service.state = "SOLO"
    service.news = {"loss": None, "validation_loss": None}
    _, samples = await scrape(service)
    assert samples["shoal_node_alone", ()] == 1.0
    assert ("shoal_run_loss", (("run", RUN),)) not in samples
    assert ("shoal_run_validation_loss", (("run", RUN),)) not in samples


def test_what_happens_is_counted_once() -> None:
    meters = Meters()
    meters.committed(70, 0.0, took_part=False)  # we only followed
    meters.committed(30, 40.0, took_part=False)  # we were ready, and left out
    meters.committed(20, 0.25, took_part=True)
    meters.committed(3, 1e6, took_part=True)
    meters.voided()
    meters.sent(StateChunk(0, 1, 0, bytes(10)))
    meters.received(StateChunk(0, 1, 0, bytes(7)))
    meters.received(GetStateChunk(0, 1, 0))
    counted = meters.as_json()
    assert (counted["samples"], counted["seconds"]) == (123, 1e6 + 0.25)
    assert [bound for bound, count in counted["durations"] if count] == [0.25, None]
    assert [bound for bound, _ in counted["durations"]] == [*BOUNDS, None]
    assert counted["failures"] == {"voided": 1}
    assert counted["sync"] == {"sent": 10, "received": 7}


def test_the_documented_names_are_those_that_are_served() -> None:
    document = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(shoal_[a-z_]+)` \|", document, flags=re.MULTILINE))
    service = FakeService()
    served = {
        {"counter": f"{family.name}_total", "info": f"{family.name}_info"}.get(family.type, family.name)
        for family in Metrics(service).collect()
    }
    assert documented == served
