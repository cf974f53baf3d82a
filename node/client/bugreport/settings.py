"""What a report says of the node's settings: each with its value, if it is harmless, and where it comes from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import typer

from shoal.node.base.home import Home
from shoal.node.base.process_identity import PROC

VARIABLES = "SHOAL_"
HARMLESS_TEXTS = ("device", "max_up", "max_down", "max_per_day")  # numbers and switches are harmless, too
COMMAND = b"node\0start\0"
ORIGINS = {"COMMANDLINE": "command line", "ENVIRONMENT": "environment", "DEFAULT": "default"}


def about_settings(home: Home) -> str:
    """The settings of the running node, from its command line, or those that a start would have."""
    words = command_line(home)
    lines = ["of the running node:" if words else "no node runs whose command line can be read; a start would have:"]
    return "\n".join([*lines, *(f"  {name}: {value} ({origin})" for name, value, origin in _settings(words))]) + "\n"


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


def _settings(words: Sequence[str]) -> Iterator[tuple[str, object, str]]:
    """(flag, its value, where that comes from); variables of this command count, if the node has no flag for it."""
    from shoal.node.client.cli.node import app

    command: Any = typer.main.get_command(app)
    start = command.commands["start"]
    try:
        context = start.make_context("shoal node start", list(words))
    except typer.BadParameter as error:
        yield "unknown", error.format_message(), "environment"
        return
    with context:
        for parameter in start.params:
            value, source = context.params.get(parameter.name), context.get_parameter_source(parameter.name)
            if parameter.opts and source is not None:
                origin = ORIGINS.get(source.name, source.name.lower())
                is_default = origin == ORIGINS["DEFAULT"]
                yield parameter.opts[0], value if is_default else _shown(parameter.name, value), origin


def _shown(name: str, value: Any) -> object:
    if value is None or isinstance(value, bool | int | float) or name in HARMLESS_TEXTS:
        return value
    if isinstance(value, list | tuple):
        return f"{len(value)} given"
    return "given"
