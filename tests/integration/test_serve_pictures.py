"""A real `shoal serve` over a folder of experts on pictures, OpenAI's own client, and experts that come and go."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import pytest

from tests.integration.test_serve import Server, end, is_idle, start, until
from tests.unit.serve.images.gallery_kit import FLOW, write_gallery, write_table

LARGE = FLOW.model_copy(update={"width": 256, "layers": 8, "hidden": 512})  # a call of ten takes seconds
LONG = {"n": 10, "extra_body": {"seed": 1, "steps": 200}}


class Said:
    """The output of a process on one stream, as it comes."""

    def __init__(self, stream: IO[str]) -> None:
        self._lines = list[str]()
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self._lines.append(line)

    def until(self, words: str) -> None:
        until(lambda: any(words in line for line in self._lines))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_gallery(tmp_path / "g", flow=LARGE)


@pytest.fixture
def running(folder: Path) -> Iterator[tuple[subprocess.Popen[str], Server]]:
    process, server = start(folder, "--waiting", "64", stderr=subprocess.PIPE)
    yield process, server
    assert end(process) == 0
    assert process.stderr is not None
    process.stderr.close()


def paint(server: Server, **asked: Any) -> Any:
    return server.client.images.generate(prompt="7", **asked)


def scraped(server: Server) -> str:
    with urllib.request.urlopen(server.url.removesuffix("/v1") + "/metrics", timeout=30) as answer:
        return str(answer.read().decode())


@pytest.mark.slow
def test_experts_come_and_go_while_it_paints(running: tuple[subprocess.Popen[str], Server], folder: Path) -> None:
    process, server = running
    assert process.stdout is not None
    assert process.stderr is not None
    said = Said(process.stderr)
    rows = json.loads((folder / "ensemble.json").read_text())["experts"]
    first = server.about()
    assert first["experts"] == ["cluster-0", "cluster-1", "cluster-2"]
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(paint, server, **LONG)
        until(lambda: server.about()["busy"] == 10)

        write_table(folder, [each for each in rows if each["name"] != "cluster-1"])
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline() == "digits: experts: cluster-0, cluster-2, router; removed: cluster-1\n"
        second = server.about()
        assert (second["experts"], second["busy"]) == (["cluster-0", "cluster-2"], 10)
        assert second["version"] != first["version"]

        answer = under_way.result(120)
        assert len(answer.data) == 10
        assert answer.shoal["version"] == first["version"]
    assert paint(server, n=1).shoal["version"] == second["version"]

    write_table(folder, [rows[0] | {"blake3": rows[1]["blake3"]}, *rows[1:]])
    process.send_signal(signal.SIGHUP)
    said.until(f"digits stays as it was: {folder / 'cluster-0.safetensors'} is not the expert cluster-0")
    assert server.about() == second | {"painted": 11, "busy": 0}
    assert paint(server, n=1).shoal["version"] == second["version"]

    write_table(folder, rows)
    process.send_signal(signal.SIGHUP)
    assert process.stdout.readline() == "digits: experts: cluster-0, cluster-1, cluster-2, router; added: cluster-1\n"
    assert server.about()["version"] == first["version"]


def asking(server: Server, count: int) -> socket.socket:
    """A client that has asked for pictures, and reads nothing."""
    client = socket.create_connection(server.address)
    body = json.dumps({"prompt": "7", "n": count, "steps": 200}).encode()
    head = "POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return client


def test_who_hangs_up_is_not_painted_for(running: tuple[subprocess.Popen[str], Server]) -> None:
    _, server = running
    clients = [asking(server, 10)]
    until(lambda: server.about()["busy"] == 10)
    clients += [asking(server, 10) for _ in range(5)]
    until(lambda: server.about()["waiting"] == 50)
    for client in reversed(clients):
        client.close()
    until(lambda: is_idle(server))
    assert server.about()["painted"] == 0
    lines = scraped(server)
    assert 'shoal_serve_pictures_total{end="broken"} 10.0' in lines
    assert 'shoal_serve_requests_total{route="/v1/images/generations",status="499"} 6.0' in lines
    assert len(paint(server, n=2).data) == 2
    assert 'shoal_serve_pictures_total{end="finished"} 2.0' in scraped(server)
