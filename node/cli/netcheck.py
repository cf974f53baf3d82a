"""`shoal netcheck`: asks the node how it stands in the network, and waits until it knows."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from shoal.node.cli.flags import Json

PAUSE = 0.5  # seconds between two questions
LIMIT = 20.0  # seconds: somebody who dials us in vain takes four, and a relay may be slow


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
    from shoal.node.cli import present
    from shoal.node.client import Client
    from shoal.node.home import find_home
    from shoal.node.netcheck.showing import show_netcheck

    answer = _settled(Client(find_home()), limit)
    present.show_json(answer) if as_json else show_netcheck(answer)
    raise typer.Exit(answer["verdict"]["exit_code"])


def _settled(client: Any, limit: float) -> dict[str, Any]:
    """The answer once all is known, or when the time is up; what is waited for is said meanwhile."""
    until, said = time.monotonic() + limit, ""
    while True:
        answer: dict[str, Any] = client.netcheck()
        if answer["settled"] or time.monotonic() > until:
            return answer
        if (waiting := ", ".join(answer["pending"])) != said:
            said = waiting
            print(f"finding out: {said}", file=sys.stderr, flush=True)
        time.sleep(PAUSE)
