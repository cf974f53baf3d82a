"""What `shoal status` looks like: five nodes, each in terminals of four widths and in a pipe, as files to be read.

The files are in tests/unit/status. After a wanted change `SHOAL_TEST_WRITE=1 pytest tests/unit/test_status_lines.py`
writes them anew; read them before they are committed.
"""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from shoal.node.api import present
from shoal.node.api.answers import RunRow
from shoal.node.client.cli.status_lines import run_lines, show_status, status_lines
from shoal.node.run.view import restoring_row

FOLDER = Path(__file__).parent / "status"
PAGE = "http://127.0.0.1:4180/#login=Zx8dWq0mV3nJt5LrYb1KcA"
WIDTHS = (60, 80, 110, 200)
PEER = "12D3KooWFBrzv39qexoVVkng8bxEzbTnE1coTGbpNSTjP9Gu5mXP"
RELAY = "12D3KooWRk6YsAqBvHqz8Xc4dN5fW1eJt2LuPgMZoK3iSy7nBFdh"
STATUS: Any = {
    "version": "0.1.0",
    "peer": PEER,
    "state": "CONNECTED",
    "evidence": None,
    "peers": 4,
    "obstacle": None,
    "waits": False,
    "paused": None,
    "warnings": [],
    "limits": {"max_up": None, "max_down": None, "max_per_day": None, "used_today": 0, "goes_on_at": None},
    "traffic": {"sent": 84_231_110, "received": 91_008_001},
    "today": {"rounds": 0, "sent": 84_231_110, "received": 91_008_001},
    "day": None,
    "relays": [RELAY],
    "relaying": {"reservations": 0, "circuits": 0, "carried_bytes": 0},
    "nat": "public",
    "reachability": "public",
    "port_mapping": None,
    "line": {"up": 0, "down": 0},
    "dht": {"servers": 12, "serves": True, "records": 30},
    "addresses": [
        f"/ip4/127.0.0.1/tcp/4101/p2p/{PEER}",
        f"/ip4/192.168.1.7/tcp/4101/p2p/{PEER}",
        f"/ip6/2001:db8:85a3:1234:9abc:def0:8a2e:7334/tcp/4101/p2p/{PEER}",
        f"/ip4/203.0.113.7/tcp/4101/p2p/{PEER}",
        f"/ip4/198.51.100.1/tcp/4101/p2p/{RELAY}/p2p-circuit/p2p/{PEER}",
    ],
    "untold_addresses": [],
    "memory": 412 << 20,
    "ending": False,
    "runs": [],
}
RUN: Any = dict.fromkeys(RunRow.__annotations__) | {
    "run": "9e086a85d4f1674a33e1d07badd03cd1c094daf1e8147121709a693bdf5885d7",
    "name": "stdlib",
    "round": 42,
    "first_round": 1,
    "members": 5,
    "digest": "c3" * 32,
    "root": "7f" * 32,
    "loss": 1.98765,
    "step": 840,
    "samples": 5_505_024,
    "phase": "training",
    "trains": True,
    "is_creator": True,
    "tokens_per_second": 21_400.4,
    "warnings": [],
    "last": 100,
    "device": "cuda:0 (NVIDIA H200)",
    "worker_memory": 1_900 << 20,
    "device_memory": 3 << 30,
    "micro_batch": 16,
    "utilisation": 0.875,
    "model_flops_utilization": 0.412,
}
OTHER = RUN | {
    "run": "1b" * 32,
    "name": "experts-of-many-sizes-on-German-Wikipedia",
    "round": 7,
    "members": 3,
    "last": None,
    "device": "cpu",
    "device_memory": None,
    "micro_batch": 4,
    "model_flops_utilization": None,
    "experts": {"parts": 8, "finished": 3, "trains": None},
}
CLOSED = dict.fromkeys(RunRow.__annotations__) | {"run": "5c" * 32, "round": 0, "step": 0, "samples": 0}
MAPPED = {"protocol": "upnp", "external": "203.0.113.7:4101", "error": None, "behind_another_nat": False}
NODES: dict[str, Any] = {
    "alone": STATUS
    | {
        "state": "SOLO",
        "peers": 0,
        "reachability": "unknown",
        "addresses": STATUS["addresses"][:2],
        "dht": {"servers": 0, "serves": False, "records": 0},
    },
    "in-a-run": STATUS
    | {
        "today": {"rounds": 112, "sent": 2_084_231_110, "received": 2_191_008_001},
        "day": {"sent": 21_474_836_480, "received": 21_474_836_480},
        "runs": [RUN],
        "port_mapping": MAPPED,
        "line": {"up": 1_250_000, "down": 6_250_000},
        "limits": STATUS["limits"] | {"max_up": 2_500_000, "max_per_day": 20 * 10**9, "used_today": 4_500_000_000},
    },
    "in-two-runs": STATUS | {"state": "IN-ROUND", "runs": [RUN | {"phase": "reducing"}, OTHER]},
    "in-trouble": STATUS
    | {
        "state": "SPLIT",
        "peers": 2,
        "evidence": "stdlib: 3 of the last 6 members are lost without a goodbye (4f2kQm, 9sXw1a, t7bYce)",
        "warnings": [{"code": "volume-nearly-used-up", "words": "95% of today's volume of 20 GB are used up"}],
        "reachability": "nat",
        "addresses": [STATUS["addresses"][1], STATUS["addresses"][4]],
        "untold_addresses": ["/ip4/10.8.0.2/tcp/4101"],
        "port_mapping": MAPPED | {"external": None, "error": "the router answers to neither NAT-PMP nor UPnP"},
        "runs": [
            RUN
            | {
                "phase": "matching",
                "members": 3,
                "waiting_for": "round 43 waits for a quorum: 3 of 6 voters are absent (4f2kQm, 9sXw1a, t7bYce)",
                "warnings": [{"code": "bulk-relayed", "words": "payloads of 2 members take a relay, which is slow"}],
            },
            OTHER | CLOSED | {"phase": "failed", "failure": "the disk is full: /var/lib/shoal has 0 bytes left"},
        ],
    },
    "draining": STATUS | {"draining": True, "runs": [RUN]},
    "paused": STATUS
    | {
        "paused": "paused: the volume of 20 GB a day is used up; this node goes on at 00:00 UTC",
        "limits": STATUS["limits"] | {"max_per_day": 20 * 10**9, "used_today": 20 * 10**9},
        "runs": [restoring_row("5c" * 32, is_paused=True, name="stdlib")],
    },
    "at-rest": STATUS
    | {
        "state": "SOLO",
        "peers": 0,
        "waits": True,
        "runs": [RUN | {"is_resting": True, "members": 1, "device": None, "worker_memory": None, "phase": "matching"}],
    },
}


def text(node: str, columns: int | None, whole: bool = False) -> str:
    return "".join(f"{line}\n" for line, _ in status_lines(NODES[node], PAGE, columns, whole))


@pytest.mark.parametrize("node", NODES)
def test_it_looks_as_in_the_file(node: str) -> None:
    shown = {f"{columns} columns": text(node, columns) for columns in WIDTHS}
    shown |= {"in a pipe": text(node, None), "--long, 80 columns": text(node, 80, whole=True)}
    found = "\n".join(f"== {name} ==\n{each}" for name, each in shown.items())
    path = FOLDER / f"{node}.txt"
    if os.environ.get("SHOAL_TEST_WRITE"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(found)
    assert found == path.read_text()


@pytest.mark.parametrize("node", NODES)
def test_it_fits_each_terminal_and_has_the_same_words_in_all(node: str) -> None:
    for columns in range(60, 201):
        shown = text(node, columns)
        assert max(map(len, shown.splitlines())) <= columns
        assert shown.split() == text(node, None).split()
    assert len(text(node, 60).splitlines()) <= (20 if len(NODES[node]["runs"]) < 2 else 30)


@pytest.mark.parametrize("node", NODES)
def test_no_row_and_no_field_is_empty(node: str) -> None:
    for whole in (False, True):
        lines = text(node, None, whole).splitlines()
        for line in filter(None, lines):
            assert not line.endswith((",", ":", " "))
            assert not {"-", "None", "nan"} & {word.strip(",:") for word in line.split()}
        assert "" not in (lines[0], lines[-1])
        assert ("", "") not in pairwise(lines)


@pytest.mark.parametrize("node", NODES)
def test_it_is_plain_ascii(node: str) -> None:
    assert text(node, 80).isascii()


def test_only_a_terminal_that_wants_them_gets_colours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for terminal, no_colour, columns in ((True, "", 80), (True, "1", 80), (False, "", None)):
        monkeypatch.setattr(present, "is_terminal", lambda is_one=terminal: is_one)
        monkeypatch.setenv("NO_COLOR", no_colour)
        show_status(NODES["in-trouble"], PAGE)
        out = capsys.readouterr().out
        is_coloured = terminal and not no_colour
        assert ("\x1b[1;31mstate    SPLIT. The swarm is split" in out) is is_coloured
        assert is_coloured or out == text("in-trouble", columns)


def test_an_address_is_never_broken() -> None:
    alone = STATUS | {"addresses": STATUS["addresses"][2:3]}
    shown = [line for line, _ in status_lines(alone, PAGE, 60)]
    place = shown.index("reached")
    assert shown[place + 1 : place + 3] == [
        "  public, at",
        "  /ip6/2001:db8:85a3:1234:9abc:def0:8a2e:7334/tcp/4101",
    ]


@pytest.mark.parametrize(
    ("addresses", "shown"),
    [
        ([0, 1, 2, 3, 4], "/ip4/203.0.113.7/tcp/4101 and 4 more"),
        ([4, 1], "the relay 7nBFdh at /ip4/198.51.100.1/tcp/4101 and 1 more"),
        ([0, 1], "/ip4/192.168.1.7/tcp/4101 and 1 more"),
        ([0], "/ip4/127.0.0.1/tcp/4101"),
    ],
)
def test_the_address_that_most_can_use_is_shown(addresses: list[int], shown: str) -> None:
    node = STATUS | {"addresses": [STATUS["addresses"][place] for place in addresses]}
    assert ("reached  public, at " + shown, "") in status_lines(node, PAGE, None)


@pytest.mark.parametrize(
    ("phase", "said"),
    [
        ("training", "does not train here"),
        ("matching", "matching, does not train here"),
        ("finished", "finished"),
    ],
)
def test_who_only_keeps_the_state_is_told_so(phase: str, said: str) -> None:
    [(words, _), *_] = run_lines([RUN | {"trains": False, "phase": phase}], None)
    assert words == f"stdlib (9e086a85): round 42 of 100, 5 members, {said}"


def test_what_others_wrote_cannot_steer_the_terminal() -> None:
    lines = run_lines([RUN | {"waiting_for": "evil\x1b[2J\nrow"}], None)
    assert ("  evil?[2J row", "yellow") in lines


def test_what_happened_to_a_run_that_had_gone_on_in_parts_is_said_with_its_time() -> None:
    event = {"branch_event": "abcdef is a member again, without whom it had gone on", "branch_event_at": 1.7e9}
    lines = [text for text, _ in status_lines(STATUS | {"runs": [RUN | event]}, "", 100)]
    assert any("2023-11-1" in text and "abcdef is a member again" in text for text in lines)
