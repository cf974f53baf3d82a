"""The `shoal` command: its entry point, and the only place that turns errors into sentences and exit codes.

Rules: importing it imports neither torch, libp2p, pydantic nor aiohttp; commands import what they need when they run.
An expected error, also one from the operating system, is one sentence on stderr that says whose fault it is; a
traceback is a bug.
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
from shoal.protocol.base.errors import LocalError, RemoteError, ShoalError, Shortage, TransportError, with_code

NEED_NO_FOLDER = {  # commands that only ask the node work in a folder that was deleted
    *("status", "peers", "netcheck", "doctor", "logs", "explain", "version", "--version", "node stop"),
    *("pause", "resume", "drain"),
    *(f"run {each}" for each in ("ls", "show", "link", "leave", "promote", "continue", "discover")),
}


GENERAL = {kind.code for kind in (LocalError, Shortage, RemoteError, TransportError)} | {"usage"}  # say no more


def main() -> None:
    """Run `shoal` with the process's arguments; always ends the process."""
    try:
        streams.repair_standard_streams()
        code = _run()
    except KeyboardInterrupt:  # before a command has handled it
        code = Exit.INTERRUPTED
    except Exception as error:
        expected = _expected(error)
        if expected is None:
            raise
        _say(with_code(sentence(expected), "" if expected.code in GENERAL else expected.code))
        code = exit_code(expected)
    if unwritten := streams.flush_error():
        _say(unwritten)
        code = code or Exit.FAILED
    sys.exit(code)


def _run() -> int:
    """Run the command; returns its exit code."""
    _keep_owner_rights()
    _check_current_folder(sys.argv[1:])
    register_extensions()
    gc.disable()  # imports leave no garbage, and collecting takes a tenth of their time
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


def _keep_owner_rights() -> None:
    """Let no umask take rights from the owner: new folders could not be written to."""
    mask = os.umask(0o077)
    os.umask(mask & ~0o700)


def _check_current_folder(arguments: list[str]) -> None:
    """LocalError if the command needs the current folder and it is gone: not even torch can be imported there."""
    try:
        os.getcwd()
    except OSError as error:
        if NEED_NO_FOLDER.isdisjoint([*arguments[:1], " ".join(arguments[:2])]):
            words = "the folder in which this command was started is gone, or cannot be entered"
            raise LocalError(
                f"{words} ({error.strerror}): change to another one first, as by `cd`", code="folder-gone"
            ) from error


def _say(words: str) -> None:
    if has_room(sys.stderr):  # else the write would block for ever, and a node whose stderr is not read never end
        print(f"shoal: {printable(words)}", file=sys.stderr)


def sentence(error: ShoalError) -> str:
    """The error in words, after whose fault it is if that is another peer or the network."""
    if isinstance(error, RemoteError):
        return f"another peer is at fault: {error}"
    is_network = isinstance(error, TransportError) and exit_code(error) == Exit.FAILED  # not a node that hangs
    return f"the network failed: {error}" if is_network else str(error)


def exit_code(error: ShoalError) -> Exit:
    """The documented exit code for `error`."""
    if isinstance(error, NoRoom):
        return Exit.FAILED  # there may be no memory for imports
    from shoal.node.api.client import NoDaemon, NotAnswering, VersionMismatch
    from shoal.node.base.options import UsageError
    from shoal.node.client.launch import StartFailed

    if isinstance(error, StartFailed):
        return error.exit
    codes = {
        UsageError: Exit.USAGE,
        NoDaemon: Exit.NO_DAEMON,
        NotAnswering: Exit.NOT_ANSWERING,
        VersionMismatch: Exit.VERSION,
    }
    return next((code for kind, code in codes.items() if isinstance(error, kind)), Exit.FAILED)


def _expected(error: BaseException) -> ShoalError | None:
    """`error` as a ShoalError: itself, one for a refusal of the system, or a group's first; None for a bug."""
    if isinstance(error, BaseExceptionGroup):
        found = [_expected(each) for each in error.exceptions]
        return None if None in found else found[0]
    if isinstance(error, ShoalError):
        return error
    clear_frames(error.__traceback__)  # frees what the frames hold: memory or open files may be used up
    return refusal(error)
