"""What a report says of the node's settings: each with its value, if it is harmless, and where it comes from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

from shoal.node.base.home import Home
from shoal.node.base.process_identity import PROC
from shoal.protocol.base.errors import ShoalError

VARIABLES = "SHOAL_"
COMMAND = b"node\0start\0"
HARMLESS_TEXTS = ("device", "max-up", "max-down", "max-per-day")  # numbers and switches are harmless, too


def about_settings(home: Home) -> str:
    """What a start here and now would have, what the running node has instead, and with which flags it was started."""
    return "".join(f"{line}\n" for line in _lines(home))


def about_variables() -> str:
    """The names of the variables of this command that mean something to Shoal."""
    return "".join(f"{name}\n" for name in sorted(os.environ) if name.startswith(VARIABLES)) or "none\n"


def command_line(home: Home) -> list[str]:
    """The arguments of the `node start` that runs here; empty if there is none, or they cannot be read."""
    node = home.daemon_process()
    if node is None or not node.is_here():
        return []
    with suppress(OSError):
        _, found, words = (PROC / str(node.pid) / "cmdline").read_bytes().partition(COMMAND)
        return [os.fsdecode(word) for word in words.split(b"\0")[:-1]] if found else []
    return []


def _lines(home: Home) -> Iterator[str]:
    from shoal.node.base.settings import BY_KEY, DEFAULT
    from shoal.node.client.cli.node import choose_settings

    running = _running(home)
    try:
        chosen = choose_settings(home)
    except ShoalError as error:
        yield f"a start would fail: {error}"
        chosen = {}
    for key in BY_KEY:
        value = None
        if (choice := chosen.get(key)) is not None:
            value = BY_KEY[key].write(choice.value)
            yield f"{key}: {value if choice.origin == DEFAULT else _shown(key, value)} ({choice.origin})"
        if key in running and running[key] != value:
            yield f"{key}: {_shown(key, running[key])} (the running node)"
    for key, value in _flags(command_line(home)):
        yield f"{key}: {_shown(key, value)} (flag of the running node)"


def _flags(words: list[str]) -> Iterator[tuple[str, Any]]:
    """(key, value) of each setting on a command line."""
    from shoal.node.base.settings import SETTINGS, SWITCH

    for word, following in pairwise([*words, ""]):
        for each in SETTINGS:
            if each.kind is SWITCH and word in (each.flag, each.opposite):
                yield each.key, word == each.flag
            elif word == each.flag:
                with suppress(ShoalError):
                    yield each.key, each.of_texts(word, [following])


def _running(home: Home) -> dict[str, Any]:
    """The settings of the running node, by key; none if none runs or answers."""
    from shoal.node.api.client import Client
    from shoal.node.api.liveness import ALIVE_WITHIN

    try:
        return dict(Client(home, ALIVE_WITHIN, ALIVE_WITHIN).settings()["settings"])
    except ShoalError:
        return {}


def _shown(key: str, value: Any) -> object:
    if value is None or isinstance(value, bool | int | float) or key in HARMLESS_TEXTS:
        return value
    if isinstance(value, list | tuple):
        return f"{len(value)} given"
    return "given"
