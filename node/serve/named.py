"""A source by its name: what the node of this machine knows by it. Here it is decided of which kind that is."""

from __future__ import annotations

from shoal.node.client import Client
from shoal.node.home import find_home
from shoal.node.serve.served import Choices, Served
from shoal.node.service import find_run
from shoal.protocol.ids import RunId


def open_named(wanted: str, choices: Choices) -> Served:
    """A run or a family, by its id, the first 8 characters of it or more, or its name; LocalError if there is none."""
    home = find_home()
    rows = {str(row["run"]): row for row in Client(home).status()["runs"]}
    run = find_run(wanted, {key: str(row["name"] or "") for key, row in rows.items()})
    if rows[run].get("experts") is not None:
        from shoal.node.serve.ensemble.family import open_family

        return open_family(home, run, choices)
    choices.check_no_mix(f"{wanted}, a run of one model")
    from shoal.node.serve.live.source import open_run

    return open_run(home, RunId(bytes.fromhex(run)), choices)
