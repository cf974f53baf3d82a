"""What a person waits for, in one line: rewritten in a terminal, printed now and then where there is none.

It goes to stderr, has no colours and no control sequences but a carriage return, and nothing else than ASCII where the
stream takes no more. What is over at once is not shown at all.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import IO, NamedTuple, TextIO

from shoal.node.base.lines import descriptor_of, has_room, printable

REWRITTEN_EVERY = 0.5  # seconds, in a terminal
PRINTED_EVERY = 10.0  # seconds, anywhere else
IN_A_FILE = 120  # characters, where there is no terminal
BAR = 30  # characters at most
LEAST_BAR = 8
FULL, EMPTY = "█", "░"
PLAIN_FULL, PLAIN_EMPTY = "#", "."
CUT = "..."


class Step(NamedTuple):
    """How far it is: in words, empty if there are none, and as a share from 0 to 1, None if it is unknown."""

    words: str = ""
    share: float | None = None


Look = Callable[[], Step]
"""Finds out how far it is; an error means that this is not known just now."""


def line(what: str, step: Step, seconds: float, columns: int, is_plain: bool = False) -> str:
    """The line for what has taken so many seconds, in less than `columns` characters.

    Where room is short the bar goes first, then the end of the words; `is_plain` has ASCII only.
    """
    figures = ([] if step.share is None else [f"{step.share:.0%}"]) + [_duration(seconds)]
    words = f"{what}: {step.words}" if step.words else what
    end, most = f", {', '.join(figures)}", columns - 1
    if len(words) + len(end) > most:
        return f"{words[: max(0, most - len(end) - len(CUT))]}{CUT}{end}"[:most]
    text = f"{words}{end}"
    width = min(BAR, most - len(text) - 2)
    if step.share is None or width < LEAST_BAR:
        return text
    full, empty = (PLAIN_FULL, PLAIN_EMPTY) if is_plain else (FULL, EMPTY)
    done = int(width * min(1.0, max(0.0, step.share)))
    return f"{text}  {full * done}{empty * (width - done)}"


def takes_blocks(stream: IO[str]) -> bool:
    """Whether the encoding of a stream has the characters of the bar."""
    try:
        (FULL + EMPTY).encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


class Waiting:
    """Shows the line in a thread while the context is open, and takes it away at the end.

    with Waiting("reading the model"):
        ...
    """

    def __init__(self, what: str, look: Look = Step, stream: TextIO | None = None) -> None:
        """`look` is called in the thread, now and then."""
        self._what, self._look = what, look
        self._stream = stream if stream is not None else sys.stderr
        self._is_terminal = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="waiting", daemon=True)
        self._shown = ""  # what stands in the terminal's line
        self._step = Step()

    def __enter__(self) -> Waiting:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(REWRITTEN_EVERY)  # it may be looking, or in a terminal that takes nothing
        if self._shown:
            self._write(f"\r{' ' * len(self._shown)}\r")

    def _run(self) -> None:
        began = time.monotonic()
        while not self._over.wait(REWRITTEN_EVERY if self._is_terminal else PRINTED_EVERY):
            with suppress(Exception):  # what is waited for does not depend on what is shown of it
                self._step = self._look()
            if not self._over.is_set():
                self._show(time.monotonic() - began)

    def _show(self, seconds: float) -> None:
        step = Step(printable(self._step.words), self._step.share)
        text = line(self._what, step, seconds, self._columns(), not takes_blocks(self._stream))
        if not self._is_terminal:
            self._write(f"{text}\n")
        elif self._write(f"\r{text.ljust(len(self._shown))}"):
            self._shown = text

    def _columns(self) -> int:
        if not self._is_terminal:
            return IN_A_FILE
        descriptor = descriptor_of(self._stream)
        with suppress(OSError):
            if descriptor is not None and (found := os.get_terminal_size(descriptor).columns):
                return found
        return shutil.get_terminal_size().columns

    def _write(self, text: str) -> bool:
        """Whether it was written; not if that would block, as in a terminal that was stopped."""
        with suppress(OSError, ValueError):  # closed, or nobody reads it any more
            if has_room(self._stream, 0.0):
                self._stream.write(text)
                self._stream.flush()
                return True
        return False


def _duration(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole} s" if whole < 100 else f"{whole // 60} min {whole % 60:02} s"
