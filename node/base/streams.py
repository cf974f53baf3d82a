"""Makes the standard streams of a command safe: all three are open, and none makes a successful command fail.

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

STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))  # in the order of their descriptors


def repair_standard_streams() -> None:
    """Open closed streams to /dev/null, and write characters that an encoding lacks as escapes.

    Input bytes that are not text become surrogates, as in command line arguments; `check_text` finds them.
    """
    for name, mode in STREAMS:
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is this stream's
            os.set_inheritable(handle, True)
            setattr(sys, name, os.fdopen(handle, mode, encoding="utf-8"))
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="ascii" if is_ascii_only() else None, errors="backslashreplace")
    if sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _BestEffortStream(
            sys.stderr.detach(), sys.stderr.encoding, "backslashreplace", line_buffering=True
        )


def is_ascii_only() -> bool:
    """Whether the user has chosen the C locale, in which Python writes UTF-8 all the same (PEP 540).

    PYTHONIOENCODING overrules the locale.
    """
    chosen = next(filter(None, map(os.environ.get, ("PYTHONIOENCODING", "LC_ALL", "LC_CTYPE", "LANG"))), "")
    return chosen in ("C", "POSIX")


def flush_error() -> str:
    """Flush standard output; returns the error as a sentence, or "". A reader that has gone is no error."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _redirect_to_null(sys.stdout)
    except OSError as error:
        _redirect_to_null(sys.stdout)
        return f"what was to be printed cannot be written: {reason(error)}"
    return ""


class _BestEffortStream(io.TextIOWrapper):
    """Standard error: what cannot be written is dropped."""

    def write(self, text: str, /) -> int:
        """Write if possible; returns the length of `text` in any case."""
        try:
            return super().write(text)
        except OSError:
            _redirect_to_null(self)
            return len(text)

    def flush(self) -> None:
        """Flush if possible."""
        try:
            super().flush()
        except OSError:
            _redirect_to_null(self)


def _redirect_to_null(stream: TextIO) -> None:
    """Redirect a stream to /dev/null, so that flushing its buffer when the interpreter ends does not fail."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
