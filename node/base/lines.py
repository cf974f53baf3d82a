"""Writes lines to a terminal, a pipe or a file in a thread, so that the caller never blocks.

A stopped terminal (Ctrl-S), a pipe that nobody reads or a disk that hangs would block an event loop that writes to it.
So lines are queued here, up to MOST bytes. Lines beyond that, and lines that cannot be written, are lost and counted;
the count is written as soon as writing works again.
"""

from __future__ import annotations

import io
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from shoal.protocol.base.shortages import in_words

MOST = 4 << 20  # bytes in the queue
PARTING = 1.0  # seconds for which the process, as it ends, waits for unwritten lines
FULL = "nobody took them"


class LineWriter:
    """Writes to one descriptor. `lost(count, reason)` makes the line that reports lost lines."""

    def __init__(self, descriptor: int, lost: Callable[[int, str], str], most: int = MOST) -> None:
        self._descriptor, self._lost_line, self._most = descriptor, lost, most
        self._waiting: deque[bytes] = deque()
        self._size = 0  # bytes that are queued or being written
        self._lost, self._reason = 0, FULL
        self._has_failed = False  # the last write failed: the next line is the next try
        self._failure: OSError | None = None
        self._is_torn = False  # the last write ended within a line
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def write(self, line: str) -> None:
        """Queue a line, given without its newline. May be called in any thread."""
        self.hand_over(f"{line}\n".encode(errors="replace"))

    def hand_over(self, data: bytes) -> None:
        """Queue bytes as they are: whole lines, or control sequences for a terminal."""
        with self._changed:
            if self._size + len(data) > self._most:
                self._lost, self._reason = self._lost + 1, FULL
                return
            self._size += len(data)
            self._waiting.append(data)
            self._changed.notify_all()
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="lines", daemon=True)
                with suppress(RuntimeError):  # no thread can be started now; the next line tries again
                    thread.start()
                    self._thread = thread

    def flush(self, limit: float | None = PARTING) -> None:
        """Wait until all is written, for so many seconds at most, or however long it takes."""
        with self._changed:
            self._changed.wait_for(lambda: not self._size, limit)

    @property
    def is_behind(self) -> bool:
        """Whether bytes are not written yet."""
        return self._size > 0

    @property
    def failure(self) -> OSError | None:
        """Why the last write failed; None if it did not."""
        return self._failure

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or (self._lost and not self._has_failed))
                lines = list(self._waiting)
                self._waiting.clear()
                lost, self._lost = self._lost, 0
                reason = self._reason
            failed = sum(not self._put(line) for line in lines)
            if lost and not self._put(f"{self._lost_line(lost, reason)}\n".encode(errors="replace")):
                failed += lost
            with self._changed:
                self._size -= sum(map(len, lines))
                self._lost, self._has_failed = self._lost + failed, bool(failed)
                self._changed.notify_all()

    def _put(self, line: bytes) -> bool:
        """Write a line, however long that takes; False if it fails."""
        rest = b"\n" + line if self._is_torn else line
        try:
            while rest:
                try:
                    rest = rest[os.write(self._descriptor, rest) :]
                except BlockingIOError:  # another process has made the descriptor non-blocking
                    _is_writable(self._descriptor, PARTING)
        except OSError as error:
            self._is_torn = self._is_torn or len(rest) < len(line)
            with self._changed:
                self._reason, self._failure = in_words(error), error
            return False
        self._is_torn, self._failure = False, None
        return True


class LineStream(io.TextIOBase):
    """A text stream that writes to the same place as `stream`, but in a thread; takes whole lines at a time."""

    def __init__(self, stream: TextIO) -> None:
        descriptor = descriptor_of(stream)
        self._stream = stream
        self._writer = LineWriter(descriptor, _lost_line) if descriptor is not None else None

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream."""
        return self._stream.encoding or "utf-8"

    @property
    def failure(self) -> OSError | None:
        """Why the last write failed; None if it did not."""
        return self._writer.failure if self._writer is not None else None

    @property
    def is_unread(self) -> bool:
        """Whether the stream is a pipe whose reader has gone."""
        return isinstance(self.failure, BrokenPipeError)

    @property
    def is_behind(self) -> bool:
        """Whether bytes are not written yet."""
        return self._writer is not None and self._writer.is_behind

    def writable(self) -> bool:
        """Always True."""
        return True

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._stream.isatty()

    def write(self, text: str, /) -> int:
        """Queue `text`; never blocks."""
        if self._writer is None:
            return self._stream.write(text)
        self._writer.hand_over(text.encode(self.encoding, "backslashreplace"))
        return len(text)

    def drain(self, limit: float | None = PARTING) -> None:
        """Wait until all is written, for so many seconds at most, or however long it takes; `flush` does not wait."""
        if self._writer is not None:
            self._writer.flush(limit)


def printable(text: str) -> str:
    """`text` on one line, with a ? for every control character: it may quote what a peer sent."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.splitlines()))


def _is_writable(descriptor: int, limit: float) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLOUT)
    return bool(waiting.poll(limit * 1000))


def descriptor_of(stream: TextIO) -> int | None:
    """The file descriptor of a stream; None if the stream is in memory."""
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def say(line: str, stream: TextIO | None = None) -> None:
    """Write a line to standard output, or to `stream`, without ever blocking the event loop."""
    target = stream if stream is not None else sys.stdout
    descriptor = descriptor_of(target)
    if descriptor is None:
        print(line, file=target, flush=True)
        return
    with _opening:
        writer = _writers.setdefault(descriptor, LineWriter(descriptor, _lost_line))
    writer.write(line)


def has_room(stream: TextIO, limit: float = PARTING) -> bool:
    """Whether a line can be written to a stream without waiting for longer than so many seconds."""
    descriptor = descriptor_of(stream)
    return descriptor is None or _is_writable(descriptor, limit)


def _lost_line(count: int, reason: str) -> str:
    return f"({count} lines before this one were lost: {reason})"


_opening = threading.Lock()
_writers: dict[int, LineWriter] = {}
