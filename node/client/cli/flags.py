"""What several commands share: flags, the client of the node, its paths, and what stdout can show."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal.node.api.client import Client

Json = Annotated[bool, typer.Option("--json", envvar="SHOAL_JSON", help="Print JSON for programs.")]
NoTrain = Annotated[
    bool,
    typer.Option("--no-train", envvar="SHOAL_NO_TRAIN", help="Keep the state and vote, but do not train (weight 0)."),
]


def refuse(context: typer.Context, names: tuple[str, ...], why: str) -> None:
    """UsageError, `why` after the flag, if one of these parameters is set by its flag or its environment variable."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT"):
            from shoal.node.base.options import UsageError

            raise UsageError(f"--{name.replace('_', '-')} {why}", code="bad-flags")


def this_node() -> Client:
    """A client of the node of this SHOAL_HOME, for a person who waits; NoDaemon if none runs."""
    from shoal.node.api.client import Client
    from shoal.node.api.liveness import ALIVE_WITHIN
    from shoal.node.base.home import find_home

    return Client(find_home(), ALIVE_WITHIN)


def absolute(path: Path | str | None) -> str:
    """The path for the node, whose current folder may be another one; empty for None."""
    return str(Path(path).absolute()) if path is not None else ""


def can_print(text: str) -> bool:
    """Whether the encoding of stdout has these characters."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True
