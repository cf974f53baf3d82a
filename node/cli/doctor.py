"""The command that finds out why a peer is reached as it is, or not at all."""

from __future__ import annotations

from typing import Annotated

import typer

from shoal.node.cli.flags import Json


def doctor(
    peer: Annotated[
        str,
        typer.Argument(metavar="PEER", help="A PeerID, the last characters of one in `shoal peers`, or a multiaddr."),
    ],
    as_json: Json = False,
) -> None:
    """Find out how a peer is reached: what was tried and is tried now, both ends' views, how fast, and what to do."""
    from shoal.node.cli import present
    from shoal.node.client import Client
    from shoal.node.doctor.show import Examined
    from shoal.node.exits import Exit
    from shoal.node.home import find_home
    from shoal.protocol.errors import TransportError

    shown, report = Examined(), None
    for answer in Client(find_home()).examine(peer):
        if not as_json:
            shown.add(answer)
        report = answer if answer.get("event") == "report" else None
    if report is None:
        raise TransportError("the node broke off in the middle; `shoal logs` may say why")
    if as_json:
        present.show_json(report)
    if report["path"] is None:
        raise typer.Exit(Exit.UNREACHABLE)
