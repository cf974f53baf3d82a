"""Logs: one line for a person, one JSON object for a machine, few repeats, no stack for the network's faults."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from shoal.node.base.logs import REMEMBERED, REPEAT_AFTER, RepeatFilter, is_network_fault, setup_logging, warn
from shoal.protocol.base.errors import LocalError, RemoteError, TransportError
from shoal.protocol.base.ids import PeerId

log = logging.getLogger("shoal.test")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Restore the global settings that setup_logging changes."""
    root = logging.getLogger()
    before = root.handlers, root.level
    others = [logging.getLogger(name) for name in ("libp2p", "multiaddr", "aiohttp")]
    levels = [(other, other.level, other.propagate) for other in others]
    yield
    root.handlers, root.level = before
    logging.captureWarnings(False)
    for other, level, propagate in levels:
        other.setLevel(level)
        other.propagate = propagate


def json_lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_machine_gets_json_lines_with_code_and_fields() -> None:
    setup_logging(stream=(out := io.StringIO()))
    warn(log, "peer-lost", "lost a peer\nand a line", peer="abc", level="forged")
    (line,) = json_lines(out)
    assert line["code"] == "peer-lost"
    assert line["peer"] == "abc"
    assert line["level"] == "warning"
    assert line["message"] == "lost a peer\nand a line"
    assert line["logger"] == "shoal.test"
    assert str(line["time"]).endswith("Z")


def test_a_terminal_gets_a_line_without_json() -> None:
    setup_logging(stream=(out := Terminal()))
    log.info("listening")
    warn(log, "peer-lost", "lost a peer\n\x1b[2Jforged line")
    first, second = out.getvalue().splitlines()
    assert first.endswith(" listening")
    assert second.endswith(" warning: lost a peer ?[2Jforged line [peer-lost]")


def test_a_warning_of_a_library_has_a_code_too() -> None:
    setup_logging(stream=(out := io.StringIO()))
    logging.getLogger("elsewhere.part").warning("hm")
    assert json_lines(out)[0]["code"] == "elsewhere"


@pytest.mark.parametrize(
    "error",
    [
        TransportError("nobody answered"),
        RemoteError("bad roster", PeerId("mallory")),
        ConnectionResetError("reset by peer"),
        TimeoutError("too slow"),
        ExceptionGroup("all", [TransportError("a"), ExceptionGroup("b", [TimeoutError()])]),
    ],
)
def test_a_network_fault_has_a_reason_but_no_stack(error: Exception) -> None:
    setup_logging(stream=(out := Terminal()))
    log.warning("the round goes on", exc_info=error)
    assert len(out.getvalue().splitlines()) == 1
    assert (str(error) or type(error).__name__) in out.getvalue()


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("bug"), LocalError("ours"), ExceptionGroup("some", [TimeoutError(), KeyError("bug")])]
)
def test_our_own_mistake_has_a_stack(error: Exception) -> None:
    setup_logging(stream=(out := io.StringIO()))
    log.error("broken", exc_info=error)
    assert type(error).__name__ in str(json_lines(out)[0]["stack"])
    assert not is_network_fault(error)


def test_repeats_are_held_back_and_counted() -> None:
    now = [0.0]
    quieter = RepeatFilter(lambda: now[0])

    def say(text: str) -> int | None:
        record = log.makeRecord(log.name, logging.WARNING, __file__, 1, text, (), None)
        return record.__dict__["held"] if quieter.filter(record) else None

    assert [say("a"), say("b"), say("a"), say("a")] == [0, 0, None, None]
    now[0] = REPEAT_AFTER - 1
    assert say("a") is None
    now[0] = REPEAT_AFTER
    assert [say("a"), say("a"), say("b")] == [3, None, 0]


def test_the_memory_of_repeats_is_bounded() -> None:
    quieter = RepeatFilter(lambda: 0.0)
    for index in range(REMEMBERED * 2):
        quieter.filter(log.makeRecord(log.name, logging.INFO, __file__, 1, f"line {index}", (), None))
    assert len(quieter._seen) == REMEMBERED


def test_strangers_on_the_local_network_cannot_fill_the_log() -> None:
    setup_logging(stream=(out := io.StringIO()))
    logging.getLogger("zeroconf").error("a packet makes no sense", exc_info=ValueError("stranger"))
    assert out.getvalue() == ""


def test_libp2p_says_errors_only_and_through_our_handler() -> None:
    libp2p = logging.getLogger("libp2p")
    libp2p.propagate = False  # as its import leaves it
    setup_logging(stream=(out := io.StringIO()))
    libp2p.warning("chatter")
    libp2p.error("broken")
    assert [line["message"] for line in json_lines(out)] == ["broken"]
