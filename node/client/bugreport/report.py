"""Makes a report: gathers its parts side by side, each for some seconds at most, and takes out what is private.

Any part may fail, and a disk may hang: the report has the others then, and says what is missing.
"""

from __future__ import annotations

import getpass
import os
import platform
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.node.base.home import Home
from shoal.node.client.bugreport import evidence
from shoal.node.client.bugreport.evidence import Texts
from shoal.node.client.bugreport.machine import about_machine, about_processes
from shoal.node.client.bugreport.redact import Private, Redacted, redact
from shoal.node.client.bugreport.settings import VARIABLES, about_settings, about_variables, command_line
from shoal.protocol.base.errors import ShoalError
from shoal.protocol.net.system.version import shoal_version

WITHIN = 20.0  # seconds for all parts
ABOUT = "about.txt"
SECRETS = ("token", "identity.key")
OUR_FOLDER = "$SHOAL_HOME"
MOST_SECRET = 64 << 10  # bytes of a file with a secret
KINDS = {  # what was taken out, one and several
    "secret": ("token or password", "tokens or passwords"),
    "key": ("key or hash", "keys or hashes"),
    "public": ("public address", "public addresses"),
    "host": ("host name", "host names"),
    "mail": ("mail address", "mail addresses"),
    "user": ("user name", "user names"),
    "folder": ("folder of a user", "folders of users"),
}


@dataclass(slots=True)
class Gathered:
    """What the parts have found so far; several threads add to it."""

    texts: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def make_report(home: Home, now: float) -> Redacted:
    """The report about the node of this home, which may be broken or not there."""
    known = [_known_without_the_disk(home)]

    def read_secrets() -> Texts:
        known.append(_known(home))
        yield from ()

    gathered = gather({"secrets": read_secrets, **_parts(home)}, WITHIN)
    missing = "".join(f"missing: {each}\n" for each in gathered.missing)
    found = redact({ABOUT: missing, **dict(sorted(gathered.texts.items()))}, known[-1])
    stamp = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    head = f"Shoal {shoal_version()}, {stamp}\ntaken out: {removed_in_words(found.removed)}\n"
    return replace(found, texts={**found.texts, ABOUT: head + found.texts[ABOUT]})


def gather(parts: Mapping[str, Callable[[], Texts]], within: float) -> Gathered:
    """What the parts yield within so many seconds, and which are missing, and why."""
    gathered, deadline = Gathered(), time.monotonic() + within
    threads = {name: _start(name, part, gathered) for name, part in parts.items()}
    for name, thread in threads.items():
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            gathered.missing.append(f"{name}: not there after {within:.0f} s, as if a disk hung")
    return Gathered(dict(gathered.texts), list(gathered.missing))  # a thread that hangs may still come


def _start(name: str, part: Callable[[], Texts], gathered: Gathered) -> threading.Thread:
    def run() -> None:
        try:
            for file, text in part():
                gathered.texts[file] = text
        except ShoalError as error:
            gathered.missing.append(f"{name}: {error}")
        except Exception as error:  # a report on what is broken must not break
            gathered.missing.append(f"{name}: {type(error).__name__} {error}".strip())

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def _parts(home: Home) -> dict[str, Callable[[], Texts]]:
    return {
        "machine": lambda: iter([("machine.txt", about_machine(home))]),
        "processes": lambda: iter([("processes.txt", about_processes(home))]),
        "settings": lambda: iter([("settings.txt", about_settings(home))]),
        "variables": lambda: iter([("variables.txt", about_variables())]),
        "answers": lambda: evidence.answers(home),
        "logs": lambda: evidence.logs(home),
        "stacks": lambda: evidence.stacks(home),
        "folder": lambda: evidence.folder(home),
    }


def removed_in_words(removed: Mapping[str, int]) -> str:
    """What was taken out, for people: `3 public addresses, 1 host name`."""
    counts = [(removed.get(kind, 0), names) for kind, names in KINDS.items()]
    return ", ".join(f"{count} {names[count > 1]}" for count, names in counts if count) or "nothing"


def _known_without_the_disk(home: Home) -> Private:
    """What must not be in the report, as far as it is known without the disk, which may hang."""
    folders = ((str(home.root), OUR_FOLDER), (os.path.expanduser("~"), "~"))
    hints = tuple(value for name, value in os.environ.items() if name.startswith(VARIABLES))
    return Private(folders=folders, user=_user(), host=platform.node(), hints=hints)


def _known(home: Home) -> Private:
    """The same, with what the disk says: secrets, runs, and where folders are without links."""
    known = _known_without_the_disk(home)
    return replace(
        known,
        secrets=tuple(filter(None, (_content(home.root / name) for name in SECRETS))),
        folders=tuple(
            dict.fromkeys([*known.folders, *((os.path.realpath(path), word) for path, word in known.folders)])
        ),
        ids=frozenset(name for folder in (home.runs, home.data, home.experts) for name in _names_in(folder)),
        hints=(*known.hints, *_command_line(home)),
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MOST_SECRET)
    except OSError:
        return b""


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _command_line(home: Home) -> list[str]:
    try:
        return command_line(home)
    except Exception:  # the lock of a broken home cannot be read
        return []
