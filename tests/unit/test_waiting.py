"""What is shown while a person waits: how it looks in each width, in a terminal, in a file, and in the C locale."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from shoal.node.base.exits import Exit
from shoal.node.client import waiting
from shoal.node.client.up import display as up_display
from shoal.node.client.up import job, orchestrate
from shoal.node.client.up.display import make_display
from shoal.node.client.up.job import do
from shoal.node.client.up.processes import Child, Children, Jobs, read_share, share_file
from shoal.node.client.waiting import FULL, Step, Waiting, line
from shoal.protocol.base.errors import LocalError, TransportError
from tests.fake_service import LINK, FakeService
from tests.unit.test_cli import Shoal, node, shoal

__all__ = ["node", "shoal"]  # fixtures

PATIENCE = 20.0
DATA = Step("getting the data: 12 of 48 MiB from 3 members", 0.25)
WIDTHS = {
    60: "joining the run: getting the data: 12 of 48 M..., 25%, 12 s",
    80: "joining the run: getting the data: 12 of 48 MiB from 3 members, 25%, 12 s",
    110: f"joining the run: getting the data: 12 of 48 MiB from 3 members, 25%, 12 s  {'█' * 7}{'░' * 23}",
    200: f"joining the run: getting the data: 12 of 48 MiB from 3 members, 25%, 12 s  {'█' * 7}{'░' * 23}",
}
PLAIN = {
    60: "measuring the validation loss, 50%, 2 min 05 s  #####......",
    80: f"measuring the validation loss, 50%, 2 min 05 s  {'#' * 15}{'.' * 15}",
    110: f"measuring the validation loss, 50%, 2 min 05 s  {'#' * 15}{'.' * 15}",
    200: f"measuring the validation loss, 50%, 2 min 05 s  {'#' * 15}{'.' * 15}",
}


class Terminal(io.StringIO):
    """A terminal, or a file, in memory."""

    def __init__(self, is_terminal: bool = True, encoding: str = "utf-8") -> None:
        super().__init__()
        self.is_terminal, self.named = is_terminal, encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.named

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "REWRITTEN_EVERY", 0.005)
    monkeypatch.setattr(waiting, "PRINTED_EVERY", 0.005)
    monkeypatch.setenv("TERM", "xterm")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize("columns", WIDTHS)
def test_it_fits_each_width(columns: int) -> None:
    assert line("joining the run", DATA, 12.7, columns) == WIDTHS[columns]
    assert line("measuring the validation loss", Step("", 0.5), 125.0, columns, is_plain=True) == PLAIN[columns]


@pytest.mark.parametrize("step", [DATA, Step(), Step("", 1.0), Step("", 7.0), Step("", -1.0)])
def test_it_is_never_as_wide_as_the_terminal(step: Step) -> None:
    for columns in range(1, 140):
        assert len(line("joining the run", step, 4000.0, columns)) < columns


def test_a_terminals_line_is_rewritten_and_taken_away() -> None:
    stream, steps = Terminal(), iter([DATA, Step("short")])
    with Waiting("joining", lambda: next(steps, Step("short")), stream):
        until(lambda: "joining: short, 0 s" in stream.getvalue())
    said = stream.getvalue()
    assert "\n" not in said
    assert "\x1b" not in said, "neither colours nor other control sequences"
    shown = said.split("\r")[1:]
    assert shown[0].startswith("joining: getting the data")
    assert shown[1].rstrip() == "joining: short, 0 s"
    assert len(shown[1]) == len(shown[0]), "what was there before is overwritten"
    assert shown[-1] == ""
    assert set(shown[-2]) == {" "}


def test_without_a_terminal_there_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (Terminal(is_terminal=False), Terminal()):
        with Waiting("joining", stream=stream):
            until(lambda stream=stream: stream.getvalue().count("\n") >= 2)  # type: ignore[misc]
        assert set(stream.getvalue().splitlines()) == {"joining, 0 s"}
        assert "\r" not in stream.getvalue()
        monkeypatch.setenv("TERM", "dumb")  # a terminal that cannot rewrite


def test_what_is_over_at_once_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "REWRITTEN_EVERY", PATIENCE)
    stream = Terminal()
    with Waiting("joining", stream=stream):
        pass
    assert stream.getvalue() == ""


def test_nothing_but_ascii_where_a_stream_takes_no_more() -> None:
    stream = Terminal(encoding="ascii")
    with Waiting("joining", lambda: Step("", 0.5), stream):
        until(lambda: "#" in stream.getvalue())
    assert stream.getvalue().isascii()


@pytest.mark.asyncio
async def test_up_goes_on_where_it_is_not_known_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orchestrate, "REWRITTEN_EVERY", 0.0)
    shown, steps = list[Step](), [DATA, DATA]

    def look() -> Step:
        if len(steps) == 2:
            steps.pop()
            raise KeyError("a job that ended")
        return steps[0]

    display, jobs = SimpleNamespace(look=shown.append), SimpleNamespace(look=look)
    async with asyncio.timeout(PATIENCE), orchestrate._looking(cast(Any, display), cast(Any, jobs)):
        while not shown:
            await asyncio.sleep(0.001)
    assert set(shown) == {DATA}


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [TransportError("the node does not answer"), KeyError("whole")])
def test_a_node_that_does_not_say_how_far_it_is_ends_nothing(error: Exception) -> None:
    steps: list[Step] = [Step("half", 0.5)]

    def look() -> Step:
        if not steps:
            raise error
        return steps.pop()

    stream = Terminal()
    with Waiting("joining", look, stream):
        until(lambda: stream.getvalue().count("half") >= 3)  # the last that is known


def test_an_error_takes_the_line_away_first() -> None:
    stream = Terminal()

    def fail() -> None:
        until(lambda: "joining" in stream.getvalue())
        raise TransportError("nobody is there")

    with pytest.raises(TransportError), Waiting("joining", stream=stream):
        fail()
    assert stream.getvalue().endswith(" \r")


# -- commands -----------------------------------------------------------------------------------------------


def test_joining_tells_how_much_has_come(
    shoal: Shoal, node: FakeService, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node.obstacle, node.download = DATA.words, {"here": 12 << 20, "whole": 48 << 20}
    join, said = node.join_run, list[Step]()

    async def slowly(*given: Any, **named: Any) -> Any:
        async with asyncio.timeout(PATIENCE):
            while not said:
                await asyncio.sleep(0.005)
        return await join(*given, **named)

    monkeypatch.setattr(node, "join_run", slowly)
    monkeypatch.setattr(waiting, "PRINTED_EVERY", 0.005)  # which the fixture has made long

    def noting(what: str, step: Step, *given: Any) -> str:
        if what == "joining the run":
            said.append(step)
        return line(what, step, *given)

    monkeypatch.setattr(waiting, "line", noting)
    assert shoal("run", "join", LINK, "--yes")[0] == Exit.OK
    assert said[0] == DATA


# -- shoal up -----------------------------------------------------------------------------------------------


def test_the_display_of_up_shows_what_is_waited_for_until_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up_display, "PRINTED_EVERY", 0.0)
    stream = Terminal(is_terminal=False)
    shown = make_display(Console(file=stream, width=200))
    shown.look(Step("nothing is waited for"))
    with shown.waiting("measuring"):
        shown.look(Step("", 0.5))
        with shown.waiting("reading"):
            shown.look(Step())
        shown.look(Step("", 0.75))
    shown.look(Step())
    rows = stream.getvalue().splitlines()
    assert [row.split("  ")[0] for row in rows] == ["measuring, 50%, 0 s", "reading, 0 s", "measuring, 75%, 0 s"]


def test_the_table_of_up_has_it_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up_display, "REDRAW_INTERVAL", 0.0)
    stream = Terminal()
    with make_display(Console(file=stream, width=80, force_terminal=True, color_system=None)) as shown:
        with shown.waiting("measuring"):
            shown.look(Step("", 0.5))
        before = len(stream.getvalue())
        shown.look(Step())
    assert f"measuring, 50%, 0 s  {FULL * 15}" in stream.getvalue()[:before]
    assert "measuring" not in stream.getvalue()[before:]


def test_a_job_tells_its_share_and_the_running_ones_are_shown_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(*arguments: str, weights: Any, tell: Callable[[float], None]) -> dict[str, Any]:
        tell(0.5)
        return {"share": read_share(tmp_path / "jobs" / "a.json")}

    (tmp_path / "jobs").mkdir()
    monkeypatch.setitem(job.TASKS, "validate", half)
    assert do([str(tmp_path / "jobs" / "a.json"), "validate"]) == 0
    assert json.loads((tmp_path / "jobs" / "a.json").read_text()) == {"share": 0.5}
    jobs = Jobs(cast(Children, None), tmp_path)
    assert jobs.look() == Step()
    jobs.running += ["a", "b", "c"]
    share_file(tmp_path / "jobs" / "b.json").write_text("0.25")
    share_file(tmp_path / "jobs" / "c.json").write_text("")  # half written
    assert jobs.look() == Step("a 50%, b 25%", 0.375)


class Failing(Children):
    """Has only jobs that cannot be done, in a process that is not started."""

    def start(self, argv: Sequence[str], log: Path, *_: Any, **__: Any) -> Child:
        log.parent.mkdir()
        with log.open("w") as said, redirect_stderr(said):
            code = do(list(argv[4:]))
        return cast(Child, SimpleNamespace(code=lambda: code))


@pytest.mark.asyncio
async def test_the_code_of_what_fails_in_a_job_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: str) -> dict[str, Any]:
        raise LocalError("there is no room", code="no-room")

    monkeypatch.setitem(job.TASKS, "merge", full)
    words = r"^peer-1 failed: there is no room \(its log is [^\]]*\)$"
    with Failing() as children, pytest.raises(LocalError, match=words) as failed:
        await Jobs(children, tmp_path).run("peer-1", "merge")
    assert failed.value.code == "no-room"
