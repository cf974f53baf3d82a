"""The `shoal` command: its entry point, and the only place that turns errors into sentences and exit codes.

Rules: importing it imports neither torch, libp2p, pydantic nor aiohttp; commands import what they need when
they run. An expected error is one sentence on stderr that says whose fault it is, and so is what the operating system
refuses; a traceback is a bug.
"""

from __future__ import annotations

import gc
import os
import sys
from traceback import clear_frames

from shoal.node.base import streams
from shoal.node.base.exits import Exit
from shoal.node.base.lines import has_room, printable
from shoal.node.base.refusals import refusal
from shoal.node.base.room import NoRoom
from shoal.node.extensions import register_extensions
from shoal.protocol.base.errors import LocalError, RemoteError, ShoalError, TransportError

NEED_NO_FOLDER = {  # they ask the node, which has its own
    *("status", "peers", "netcheck", "doctor", "logs", "version", "node stop"),
    *(f"run {each}" for each in ("ls", "show", "link", "leave", "discover")),
}


def main() -> None:
    """Run `shoal` with the process's arguments; always ends the process."""
    try:
        streams.repair_standard_streams()
        code = _run()
    except KeyboardInterrupt:  # before a command heard it
        code = Exit.INTERRUPTED
    except Exception as error:
        expected = _expected(error)
        if expected is None:
            raise
        _say(sentence(expected))
        code = exit_code(expected)
    if unwritten := streams.flush_error():
        _say(unwritten)
        code = code or Exit.FAILED
    sys.exit(code)


def _run() -> int:
    """The command; its exit code."""
    _keep_own_rights()
    _look_where_we_are(sys.argv[1:])
    register_extensions()
    gc.disable()  # what is imported is no garbage, and looking for it takes a tenth of the time
    from shoal.node.client.cli.app import app

    gc.freeze()
    gc.enable()
    try:
        app(prog_name="shoal")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or Exit.OK
        _say(str(end.code))
        return Exit.FAILED
    return Exit.OK


def _keep_own_rights() -> None:
    """A umask that takes rights from ourselves would make folders that we could put nothing into."""
    mask = os.umask(0o077)
    os.umask(mask & ~0o700)


def _look_where_we_are(arguments: list[str]) -> None:
    """LocalError if the current folder is gone: torch cannot even be loaded there. Some commands need none."""
    try:
        os.getcwd()
    except OSError as error:
        if NEED_NO_FOLDER.isdisjoint([*arguments[:1], " ".join(arguments[:2])]):
            words = "the folder in which this command was started is gone, or cannot be entered"
            raise LocalError(f"{words} ({error.strerror}): change to another one first, as by `cd`") from error


def _say(words: str) -> None:
    if has_room(sys.stderr):  # else a node would never end that has nobody to tell why
        print(f"shoal: {printable(words)}", file=sys.stderr)


def sentence(error: ShoalError) -> str:
    """What to tell a person: the error, after a word on whose fault it is unless it is ours or theirs."""
    if isinstance(error, RemoteError):
        return f"another peer is at fault: {error}"
    return f"the network failed: {error}" if isinstance(error, TransportError) else str(error)


def exit_code(error: ShoalError) -> Exit:
    """The documented code that stands for `error`."""
    if isinstance(error, NoRoom):
        return Exit.FAILED  # there may be none to import anything
    from shoal.node.api.client import NoDaemon, VersionMismatch
    from shoal.node.base.options import UsageError
    from shoal.node.client.launch import StartFailed

    if isinstance(error, StartFailed):
        return error.code
    codes = {UsageError: Exit.USAGE, NoDaemon: Exit.NO_DAEMON, VersionMismatch: Exit.VERSION}
    return next((code for kind, code in codes.items() if isinstance(error, kind)), Exit.FAILED)


def _expected(error: BaseException) -> ShoalError | None:
    """The ShoalError that `error` is, or stands for, or the first of a group of nothing else; None for a bug."""
    if isinstance(error, BaseExceptionGroup):
        found = [_expected(each) for each in error.exceptions]
        return None if None in found else found[0]
    if isinstance(error, ShoalError):
        return error
    clear_frames(error.__traceback__)  # what they hold may be what is lacking
    return refusal(error)
