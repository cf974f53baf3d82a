"""A real `shoal serve` over a folder of experts, OpenAI's own client, and experts that come while it serves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.node.inference.engine.batch import write
from shoal.node.inference.engine.sequence import Sampling
from shoal.node.inference.served import ServeOptions
from shoal.node.inference.source import open_source
from tests.integration.test_serve import Server, end, start
from tests.unit.serve.ensemble.kit import OTHER, SMALL, theta, write_experts, write_file

EXPERTS = {"code": (1, SMALL), "prose": (2, OTHER)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_experts(tmp_path_factory.mktemp("experts") / "fam", EXPERTS)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "prior.txt"
    path.write_text("It was a dark and stormy night.\n" * 20)
    return path


@pytest.fixture
def running(folder: Path, text: Path) -> Iterator[tuple[subprocess.Popen[str], Server]]:
    process, server = start(folder, "--mix", "top-2", "--prior", str(text))
    yield process, server
    assert end(process) == 0


def names(server: Server) -> list[str]:
    return [each["name"] for each in server.about()["experts"]]


def test_an_ensemble_answers_and_takes_in_experts_while_it_serves(
    running: tuple[subprocess.Popen[str], Server], folder: Path
) -> None:
    process, server = running
    about = server.about()
    assert (about["mix"], about["context"], names(server)) == ("top-2", OTHER.context, ["code", "prose"])
    assert sum(each["prior"] for each in about["experts"]) == pytest.approx(1, abs=1e-5)
    asked: dict[str, Any] = {"model": "fam", "prompt": "Once", "max_tokens": 24, "temperature": 0}
    asked["extra_body"] = {"ignore_eos": True}
    before = server.client.completions.create(**asked)
    assert set(before.choices[0].shoal["experts"]) == {"code", "prose"}
    assert before.choices[0].shoal["lost"] == []

    write_experts(folder, EXPERTS | {"verse": (3, SMALL)})
    process.send_signal(signal.SIGHUP)
    assert process.stdout is not None
    assert process.stdout.readline() == "fam: experts: code, prose, verse; added: verse\n"
    assert names(server) == ["code", "prose", "verse"]

    parts = list(server.client.completions.create(**asked, stream=True))
    shares = parts[-1].choices[0].shoal["experts"]
    assert len(shares) == 2, "the two best of three"
    assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
    assert parts[0].system_fingerprint != before.system_fingerprint

    write_experts(folder, EXPERTS)
    process.send_signal(signal.SIGHUP)
    assert process.stdout.readline() == "fam: experts: code, prose; removed: verse\n"
    assert names(server) == ["code", "prose"]


def test_generate_writes_with_experts_that_are_merged(tmp_path: Path) -> None:
    alike = write_experts(tmp_path / "alike", {"a": (1, SMALL), "b": (1, SMALL)})
    write_file(tmp_path / "base.safetensors", theta(5))
    flags = ["--temperature", "0", "--max-tokens", "8", "--mix", "pcb", "--base", str(tmp_path / "base.safetensors")]
    command = [sys.executable, "-m", "shoal.node", "generate", str(alike), "Once upon", *flags]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240, check=True)
    served = open_source(alike, ServeOptions(slots=1, mix="pcb", base="5"))
    assert found.stdout == "".join(write(served, "Once upon", max_tokens=8, sampling=Sampling(temperature=0))) + "\n"
