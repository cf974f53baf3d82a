"""The `shoal` command: its entry point, and the only place that turns errors into sentences and exit codes.

Rules: importing it imports neither torch, libp2p, pydantic nor aiohttp; commands import what they need when
they run. An expected error is one sentence on stderr that says whose fault it is; a traceback is a bug.
"""

from __future__ import annotations

import sys
from traceback import clear_frames

from shoal.node.exits import Exit
from shoal.node.room import NoRoom, no_room
from shoal.node.text import printable
from shoal.protocol.errors import RemoteError, ShoalError, TransportError


def main() -> None:
    """Run `shoal` with the process's arguments; always ends the process."""
    from shoal.node.cli.app import app

    try:
        app(prog_name="shoal")
    except Exception as error:
        expected = _expected(error)
        if expected is None:
            raise
        print(f"shoal: {printable(sentence(expected))}", file=sys.stderr)
        sys.exit(exit_code(expected))


def sentence(error: ShoalError) -> str:
    """What to tell a person: the error, after a word on whose fault it is unless it is ours or theirs."""
    if isinstance(error, RemoteError):
        return f"another peer is at fault: {error}"
    return f"the network failed: {error}" if isinstance(error, TransportError) else str(error)


def exit_code(error: ShoalError) -> Exit:
    """The documented code that stands for `error`."""
    if isinstance(error, NoRoom):
        return Exit.FAILED  # there may be none to import anything
    from shoal.node.client import NoDaemon, VersionMismatch
    from shoal.node.launch import StartFailed
    from shoal.node.options import UsageError

    if isinstance(error, StartFailed):
        return error.code
    codes = {UsageError: Exit.USAGE, NoDaemon: Exit.NO_DAEMON, VersionMismatch: Exit.VERSION}
    return next((code for kind, code in codes.items() if isinstance(error, kind)), Exit.FAILED)


def _expected(error: BaseException) -> ShoalError | None:
    """The ShoalError that `error` is, or a want of memory or disk in words, or the first of a group of nothing else;
    None for a bug."""
    if isinstance(error, BaseExceptionGroup):
        found = [_expected(each) for each in error.exceptions]
        return None if None in found else found[0]
    if isinstance(error, ShoalError):
        return error
    clear_frames(error.__traceback__)  # what they hold may be what is lacking
    return no_room(error)
