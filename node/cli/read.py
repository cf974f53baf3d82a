"""Commands that only look: what the node says of itself and of the peers that it sees."""

from __future__ import annotations

from typing import Annotated

import typer

from shoal.node.cli.flags import Json
from shoal.node.exits import Exit


def status(
    as_json: Json = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            envvar="SHOAL_CHECK",
            help="Exit with 4 if the node is SOLO, with 6 if the swarm is SPLIT.",
        ),
    ] = False,
) -> None:
    """Show the node: am I alone, in which runs, how far, how well."""
    from shoal.node import present
    from shoal.node.client import Client
    from shoal.node.home import find_home

    client = Client(find_home())
    answer = client.status()
    present.show_json(answer) if as_json else present.show_status(answer, client.page(present.is_terminal()))
    if check:
        raise typer.Exit({"SOLO": Exit.ALONE, "SPLIT": Exit.SPLIT}.get(answer["state"], Exit.OK))


def peers(as_json: Json = False) -> None:
    """Show the peers of this node's runs, and how they are reached."""
    from shoal.node import present
    from shoal.node.client import Client
    from shoal.node.home import find_home

    answer = Client(find_home()).peers()
    present.show_json(answer) if as_json else present.show_peers(answer)


def version(as_json: Json = False) -> None:
    """Show the version of this command."""
    from shoal.node import present
    from shoal.node.version import shoal_version

    present.show_json({"version": shoal_version()}) if as_json else print(f"shoal {shoal_version()}")
