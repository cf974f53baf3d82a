"""The commands `shoal netcheck` (what is between this node and all others) and `shoal doctor` (and one peer)."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from shoal.node.client.cli.completion import complete_peer
from shoal.node.client.cli.flags import Json, this_node

PAUSE = 0.5  # seconds between two calls of the node
LIMIT = 20.0  # seconds: a peer that dials us in vain takes four, and a relay may be slow


def netcheck(
    as_json: Json = False,
    limit: Annotated[
        float,
        typer.Option(
            "--limit", envvar="SHOAL_NETCHECK_LIMIT", min=0.0, help="Seconds to wait for what is not known yet."
        ),
    ] = LIMIT,
) -> None:
    """Find out how others reach this node, what is in the way, and what to do about it.

    The exit code is 0 if they do, directly or by relays; 4 if the node sees nobody, 8 if nobody can reach it, 10 if
    something else is broken, 11 if too little is known yet.
    """
    from shoal.node.api import present
    from shoal.node.client.cli.diagnosis_lines import show_netcheck

    answer = _settled(this_node(), limit)
    present.show_json(answer) if as_json else show_netcheck(answer)
    raise typer.Exit(answer["verdict"]["exit_code"])


def _settled(client: Any, limit: float) -> dict[str, Any]:
    """The answer once all is known, or after `limit` seconds; prints to stderr what is being waited for."""
    until, said = time.monotonic() + limit, ""
    while True:
        answer: dict[str, Any] = client.netcheck()
        if answer["settled"] or time.monotonic() > until:
            return answer
        if (waiting := ", ".join(answer["pending"])) != said:
            said = waiting
            print(f"finding out: {said}", file=sys.stderr, flush=True)
        time.sleep(PAUSE)


def doctor(
    peer: Annotated[
        str,
        typer.Argument(
            metavar="PEER",
            help="A PeerID, the last characters of one in `shoal peers`, or a multiaddr.",
            autocompletion=complete_peer,
        ),
    ],
    as_json: Json = False,
) -> None:
    """Find out how a peer is reached: what was tried and is tried now, both ends' views, how fast, and what to do."""
    from shoal.node.api import present
    from shoal.node.base.exits import Exit
    from shoal.node.client.cli.diagnosis_lines import ExaminationPrinter
    from shoal.protocol.base.errors import TransportError

    shown, report = ExaminationPrinter(), None
    for answer in this_node().examine(peer):
        if not as_json:
            shown.add(answer)
        report = answer if answer.get("event") == "report" else None
    if report is None:
        raise TransportError("the node broke off in the middle; `shoal logs` may say why")
    if as_json:
        present.show_json(report)
    if report["path"] is None:
        raise typer.Exit(Exit.UNREACHABLE)
