"""How an examination and the table of peers are shown: complete at each width, without control characters."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.node.api.present import show_peers
from shoal.node.client.cli.diagnosis_lines import ExaminationPrinter, place
from tests.fake_service import CIRCUIT, EXAMINED, PEER, FakeService


@pytest.mark.parametrize("width", [80, 120])
def test_an_examination_fits_and_has_all(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = ExaminationPrinter()
    for answer in EXAMINED:
        shown.add(answer)
    out = capsys.readouterr().out
    print(out)
    assert max(map(len, out.splitlines())) <= width
    assert "\x1b" not in out
    flat = " ".join(out.split())
    for words in (
        f"{PEER} where it may be the relay 7nBFdh at /ip4/198.51.100.1/tcp/4101 (dht, cache)",
        "dialled /ip4/203.0.113.7/tcp/4101: no answer?[2J, 3 times",
        "called by the relay 7nBFdh at /ip4/198.51.100.1/tcp/4101: ok after 5.0 s",
        "round trip 41.5 ms",
        "rate 18 Mbit/s there, 4.4 Mbit/s back",
        "router public symmetric",
        "its view relayed: evil?[2J",
        "what it has tried towards this node",
        "this node's router gives each destination another port (symmetric), 2 times",
        "Slow. Forward.",
    ):
        assert words in flat, words
    assert out.index("until now") < out.index("\nnow") < out.index("the connection") < out.index("both ends")


def test_an_examination_without_a_connection(capsys: pytest.CaptureFixture[str]) -> None:
    shown = ExaminationPrinter()
    shown.add({"event": "peer", "peer": None, "path": None, "addresses": []})
    shown.add(EXAMINED[-1] | {"path": None, "there": None, "there_note": "it is gone"})
    out = capsys.readouterr().out
    assert "the connection" not in out
    assert "its view      it is gone" in out


def test_an_address_by_a_relay_is_short() -> None:
    assert place(f"{CIRCUIT}/p2p/{PEER}") == "the relay 7nBFdh at /ip4/198.51.100.1/tcp/4101"
    assert place("/ip4/203.0.113.7/tcp/4101") == "/ip4/203.0.113.7/tcp/4101"


def test_peers_with_their_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    [row] = FakeService().peers()
    gone: Any = {
        "peer": PEER,
        "run": row["run"],
        "round": 2,
        **dict.fromkeys(("path", "reason", "rtt_ms", "send_rate")),
    }
    show_peers([row, gone])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["PEER", "RUN", "ROUND", "PATH", "RTT", "MS", "SENDS", "RECEIVES"]
    assert lines[1].split()[3:] == ["direct", "0.5", "20", "Mbit/s", "not", "yet"]
    assert lines[2].split() == [PEER, row["run"][:8], "2", "-", "-", "-", "-"]
    assert lines[3:] == ["", "2Jpeer: you dialled?[2J it"]
    show_peers([])
    assert capsys.readouterr().out == "no peers\n"


@pytest.mark.parametrize(("width", "name"), [(80, PEER[-12:]), (120, PEER)])
def test_a_narrow_terminal_has_the_ends_of_names(
    width: int, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("shoal.node.api.present.is_terminal", lambda: True)
    [row] = FakeService().peers()
    show_peers([row | {"peer": PEER, "receive_rate": 1.23e8, "path": "punched", "reason": "so " * 50}])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[0] == name
    assert max(map(len, lines)) <= width
