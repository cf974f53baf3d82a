"""The log file of a background node: for people, for programs, and limited in size."""

from __future__ import annotations

import json
import time
from itertools import islice
from pathlib import Path

import pytest

from shoal.node.client.cli import read
from shoal.node.client.cli.read import for_people


def line(**entry: object) -> str:
    return json.dumps({"time": "2026-01-02T03:04:05.678Z", "level": "info", "message": "hello"} | entry)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (line(), "2026-01-02 03:04:05 hello"),
        (line(level="warning", code="lost"), "2026-01-02 03:04:05 warning: hello [lost]"),
        (line(message="a\x1b[2Jb\nc"), "2026-01-02 03:04:05 a?[2Jb c"),
        (line(stack="one\ntwo\x07"), "2026-01-02 03:04:05 hello\none\ntwo?"),
        ("Traceback \x1b", "Traceback ?"),
        ("[1]", "[1]"),
    ],
)
def test_lines_for_people(line: str, shown: str) -> None:
    assert for_people(line) == shown


def test_following_sees_whole_lines_and_goes_on_with_a_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "daemon.log"
    log.write_text("old\n")

    def write(text: str) -> None:
        with log.open("a") as file:
            file.write(text)

    def start_anew() -> None:
        log.replace(tmp_path / "daemon.log.1")
        write("of the next life\n")

    happens = [lambda: write("half a "), lambda: write("line\nwhole\n"), start_anew]
    monkeypatch.setattr(time, "sleep", lambda _: happens.pop(0)())
    with log.open() as file:
        file.read()
        seen = list(islice(read._appended(log, file), 3))
    assert seen == ["half a line\n", "whole\n", "of the next life\n"]
