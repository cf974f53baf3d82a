"""Logging to stderr: lines for people if it is a terminal, JSON lines for programs otherwise.

Every warning has a stable code (kebab-case, never renamed) to search for and to alert on; `warn` asks for it. An error
without one has the code of what was raised, and a bug the code `bug`. docs/errors.md lists all of them.
Lines are written by a thread (lines.py), so a blocked terminal or disk holds nothing up. Identical lines are printed
once a minute, with their count. Network faults are normal and never print a stack trace; nor do shortages of this
machine.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from shoal.node.base.lines import LineWriter, descriptor_of, printable
from shoal.protocol.base.errors import RemoteError, ShoalError, Shortage, TransportError, with_code
from shoal.protocol.base.shortages import is_temporary

MAX_LOG = 16 << 20  # bytes
MAX_LINE = 500  # characters of a line that is quoted elsewhere
REPEAT_AFTER = 60.0  # seconds in which identical lines are held back
REMEMBERED = 1024  # lines
NETWORK_FAULTS = (RemoteError, TransportError, ConnectionError, TimeoutError, EOFError)
THIRD_PARTIES = {
    "libp2p": logging.ERROR,
    "multiaddr": logging.ERROR,
    "aiohttp": logging.WARNING,
    "zeroconf": logging.CRITICAL,  # it logs a stack for each bad packet of a stranger, and raises what stops it
}


def warn(logger: logging.Logger, code: str, message: str, **fields: Any) -> None:
    """Log a warning under its stable `code`; `fields` become keys of the JSON line."""
    logger.warning("%s", message, extra={"code": code, "fields": fields})


def setup_logging(level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Make this process log by the rules above. Call it after importing libp2p, which sets up its own logging."""
    target = stream if stream is not None else sys.stderr
    descriptor = descriptor_of(target)
    handler = logging.StreamHandler(target) if descriptor is None else BackgroundHandler(descriptor)
    handler.setFormatter(HumanFormatter() if target.isatty() else JsonFormatter())
    handler.addFilter(RepeatFilter(time.monotonic))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    logging.captureWarnings(True)
    for name, least in THIRD_PARTIES.items():
        logger = logging.getLogger(name)
        logger.setLevel(max(level, least))
        logger.propagate = True


def is_network_fault(error: BaseException | None) -> bool:
    """Whether the network or a peer has caused an error, or all errors of an exception group."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_network_fault(each) for each in error.exceptions)
    return isinstance(error, NETWORK_FAULTS)


class RepeatFilter(logging.Filter):
    """Holds identical lines back for REPEAT_AFTER seconds; the next one says how many there were."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: OrderedDict[tuple[str, int, str], tuple[float, int]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to print `record`; its `held` becomes the number of lines held back before it."""
        with self._lock:
            return self._admit(record, self._clock())

    def _admit(self, record: logging.LogRecord, now: float) -> bool:
        key = (record.name, record.levelno, record.getMessage())
        since, held = self._seen.get(key, (-REPEAT_AFTER, 0))
        if now - since < REPEAT_AFTER and key in self._seen:
            self._seen[key] = (since, held + 1)
            return False
        self._seen[key] = (now, 0)
        self._seen.move_to_end(key)
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        record.held = held
        return True


class BackgroundHandler(logging.Handler):
    """Hands lines to a thread that writes them to a descriptor."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._writer = LineWriter(descriptor, self._lost_line)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the line; never blocks."""
        try:
            self._writer.write(self.format(record))
        except Exception:  # as all handlers do
            self.handleError(record)

    def flush(self) -> None:
        """Wait a moment for unwritten lines; called at the end of the process."""
        self._writer.flush()

    def _lost_line(self, count: int, reason: str) -> str:
        words = f"{count} lines of this log were lost: {reason}"
        record = logging.makeLogRecord(
            {"name": "shoal.log", "levelno": logging.WARNING, "levelname": "WARNING", "msg": words, "code": "log-lost"}
        )
        return self.format(record)


class HumanFormatter(logging.Formatter):
    """Formats a record as `12:34:56 warning: message [code]`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, followed by a stack trace only for bugs."""
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        clock = self.formatTime(record, "%H:%M:%S")
        line = printable(with_code(f"{clock} {level}{_message(record)}", _code(record)))
        stack = _stack(self, record)
        return f"{line}\n{stack}" if stack else line


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, code, and the fields given."""

    def format(self, record: logging.LogRecord) -> str:
        """The object; the fields cannot overwrite our own keys."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = dict(getattr(record, "fields", {}))
        line |= {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        if code := _code(record):
            line["code"] = code
        if stack := _stack(self, record):
            line["stack"] = stack
        return json.dumps(line, default=str)


def _code(record: logging.LogRecord) -> str:
    """The code of a line, "" if it needs none; what a library says has its name for a code."""
    code: str = getattr(record, "code", "")
    error = record.exc_info[1] if record.exc_info else None
    if code or record.levelno < logging.WARNING:
        return code
    if error is None:
        return record.name.partition(".")[0]
    if isinstance(error, ShoalError):
        return error.code
    return TransportError.code if is_network_fault(error) else Shortage.code if is_temporary(error) else "bug"


def _message(record: logging.LogRecord) -> str:
    held = getattr(record, "held", 0)
    error = record.exc_info[1] if record.exc_info else None
    reason = f": {error or type(error).__name__}" if error is not None and _is_expected(error) else ""
    return record.getMessage() + reason + (f" (said {held} more times in the last minute)" if held else "")


def _stack(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if not record.exc_info or _is_expected(record.exc_info[1]):
        return ""
    return formatter.formatException(record.exc_info)


def _is_expected(error: BaseException | None) -> bool:
    """Whether an error is no bug: a fault of the network, or a shortage that passes."""
    return is_network_fault(error) or is_temporary(error)


def log_size(log: Path) -> int:
    """The size of a log in bytes, which is where the next lines will begin; 0 if there is none."""
    return log.stat().st_size if log.exists() else 0


def last_line(log: Path, start: int, prefix: str = "") -> str:
    """The last line of a log after byte `start`, preferably one with `prefix`; empty if there is none."""
    try:
        with log.open("rb") as file:
            is_rotated = os.fstat(file.fileno()).st_size < start
            file.seek(0 if is_rotated else start)
            lines = [line.strip() for line in file.read(1 << 20).decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    found = next((line for line in reversed(lines) if line.startswith(prefix)), lines[-1] if lines else "")
    return printable(found)[:MAX_LINE]


def rotate_if_large(log: Path) -> None:
    """Rename a log of more than MAX_LOG bytes to .log.1, replacing the one before; for use before its writer starts."""
    with suppress(FileNotFoundError):
        if log.stat().st_size > MAX_LOG:
            log.replace(log.with_suffix(".log.1"))
