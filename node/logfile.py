"""Reading the log of a node in the background, for people and for programs.

The file holds JSON lines; a person gets the lines that a terminal would have got, a program the file's own. While we
follow, the node may be started again and begin a new file: then we go on with that one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from shoal.node.home import Home
from shoal.node.text import printable
from shoal.protocol.errors import LocalError

POLL = 0.2  # seconds


def show(home: Home, lines: int, follow: bool, as_json: bool) -> None:
    """Print the last `lines`, and with `follow` all that come; LocalError if there is no log."""
    info = home.read_daemon()
    if info is not None and not info.logs_here:
        raise LocalError(
            f"the node (pid {info.pid}) runs in the foreground and logs where it was started: "
            "there, or see `journalctl -u shoal` or the container's logs"
        )
    try:
        with home.daemon_log.open(encoding="utf-8", errors="replace") as file:
            for line in deque(file, maxlen=lines):
                _print(line, as_json)
            for line in _coming(home.daemon_log, file) if follow else ():
                _print(line, as_json)
    except FileNotFoundError as error:
        raise LocalError(f"no node has logged into {home.daemon_log} yet: start one with `shoal node start`") from error


def _coming(path: Path, file: TextIO) -> Iterator[str]:
    """The lines that are appended from now on, whole ones only, also of the files that replace this one."""
    part = ""
    while True:
        if line := file.readline():
            part += line
            if part.endswith("\n"):
                yield part
                part = ""
        elif _was_replaced(path, file):
            with path.open(encoding="utf-8", errors="replace") as fresh:
                yield from _coming(path, fresh)
        else:
            sys.stdout.flush()
            time.sleep(POLL)


def _was_replaced(path: Path, file: TextIO) -> bool:
    try:
        return not os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _print(line: str, as_json: bool) -> None:
    print(line.rstrip("\n") if as_json else for_people(line))


def for_people(line: str) -> str:
    """A JSON line as `HumanLine` would have written it; any other line as it is."""
    try:
        entry = json.loads(line)
        stamp, level, message = str(entry["time"])[:19].replace("T", " "), entry["level"], entry["message"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return printable(line)
    code = f" [{entry['code']}]" if "code" in entry else ""
    words = printable(f"{stamp} {'' if level == 'info' else f'{level}: '}{message}{code}")
    return "\n".join([words, *map(printable, str(entry.get("stack", "")).splitlines())])
