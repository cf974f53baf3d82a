"""The standard streams of a command: all three are opened, and none makes a command fail that did its work.

A service manager, cron or a shell (`>&-`) may have closed one, and the next file that is opened would get its number. A
pipe's reader may be gone (`| head`), the disk full, the terminal closed, or the locale may lack our characters.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TextIO

from shoal.node.base.refusals import reason

STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))  # by their numbers


def repair_standard_streams() -> None:
    """Open what was closed, to nowhere; write letters that a stream does not know as their numbers.

    Bytes that are no text are read as Python has them in arguments: whoever takes a text looks for them.
    """
    for name, mode in STREAMS:
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this stream's
            os.set_inheritable(handle, True)
            setattr(sys, name, os.fdopen(handle, mode, encoding="utf-8"))
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _BestEffortStream(
            sys.stderr.detach(), sys.stderr.encoding, "backslashreplace", line_buffering=True
        )


def flush_error() -> str:
    """Why what was printed cannot be written; empty if it was. Who stopped reading has read enough."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _redirect_to_null(sys.stdout)
    except OSError as error:
        _redirect_to_null(sys.stdout)
        return f"what was to be printed cannot be written: {reason(error)}"
    return ""


class _BestEffortStream(io.TextIOWrapper):
    """A stream for what is said beside: if nobody can hear it, that is all."""

    def write(self, text: str, /) -> int:
        """Its length, whatever came of it."""
        try:
            return super().write(text)
        except OSError:
            _redirect_to_null(self)
            return len(text)

    def flush(self) -> None:
        """As far as it goes."""
        try:
            super().flush()
        except OSError:
            _redirect_to_null(self)


def _redirect_to_null(stream: TextIO) -> None:
    """So that what is left in its buffer fails no more, when the interpreter ends."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
