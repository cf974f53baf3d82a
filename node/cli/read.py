"""Commands that only look: what the node says of itself and of the peers that it sees."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shoal.node.cli.flags import Json
from shoal.protocol.errors import LocalError


def status(
    as_json: Json = False,
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code",
            envvar="SHOAL_EXIT_CODE",
            help="A health check: exit with 3 if no node answers, 4 if it is alone, 6 if the swarm is SPLIT, 7 if a "
            "run has failed.",
        ),
    ] = False,
) -> None:
    """Show the node: am I alone, in which runs, how far, how well."""
    from shoal.node.cli import present
    from shoal.node.client import Client
    from shoal.node.home import find_home

    client = Client(find_home())
    answer = client.status()
    present.show_json(answer) if as_json else present.show_status(answer, client.page(present.is_terminal()))
    if exit_code:
        from shoal.node.health import verdict

        raise typer.Exit(verdict(answer))


def peers(as_json: Json = False) -> None:
    """Show the peers of this node's runs: how each is reached, why so, how far it is and how fast."""
    from shoal.node.cli import present
    from shoal.node.cli.peer_lines import show_peers
    from shoal.node.client import Client
    from shoal.node.home import find_home

    answer = Client(find_home()).peers()
    present.show_json(answer) if as_json else show_peers(answer)


def logs(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", envvar="SHOAL_LOGS_FOLLOW", help="Go on as the log grows, until Ctrl-C.")
    ] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", envvar="SHOAL_LOGS_LINES", min=0, help="How many of the last lines.")
    ] = 50,
    round: Annotated[
        int | None,
        typer.Option(envvar="SHOAL_LOGS_ROUND", min=1, help="The timeline of this round instead, as this node saw it."),
    ] = None,
    run: Annotated[
        str, typer.Option(envvar="SHOAL_LOGS_RUN", help="The run of --round, if the node is in several.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Show what the node in the background has logged, or, with --round, what happened in a round."""
    from shoal.node import logfile
    from shoal.node.home import find_home

    if (round is None and run) or (round is not None and follow):
        from shoal.node.options import UsageError

        raise UsageError("--run goes with --round, and --follow without it")
    if round is None:
        logfile.show(find_home(), lines, follow, as_json)
    else:
        _show_round(round, run, as_json)


def _show_round(round: int, run: str, as_json: bool) -> None:
    from shoal.node.cli import present
    from shoal.node.cli.round_lines import show_round
    from shoal.node.client import Client
    from shoal.node.home import find_home

    client = Client(find_home())
    timeline = client.timeline(run or _only_run(client.runs()), round)
    present.show_json(timeline) if as_json else show_round(timeline)


def _only_run(runs: list[dict[str, Any]]) -> str:
    """The run that is meant where none is named."""
    if len(runs) == 1:
        return str(runs[0]["run"])
    names = ", ".join(str(each["name"] or each["run"][:8]) for each in runs)
    raise LocalError(f"name the run with --run: this node is in {names}" if runs else "this node is in no run")


def version(as_json: Json = False) -> None:
    """Show the version of this command."""
    from shoal.node.cli import present
    from shoal.protocol.version import shoal_version

    present.show_json({"version": shoal_version()}) if as_json else print(f"shoal {shoal_version()}")
