"""Commands that only read: the node's status, its peers, its log and its rounds, and the version."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from shoal.node.base.lines import printable
from shoal.node.client.cli.completion import complete_run
from shoal.node.client.cli.flags import Json, this_node
from shoal.protocol.base.errors import LocalError

if TYPE_CHECKING:
    from shoal.node.api.answers import RunRow
    from shoal.node.base.home import Home

# -- the log of a node in the background ---------------------------------------------------------------------------


POLL = 0.2  # seconds


def show_log(home: Home, lines: int, follow: bool, as_json: bool) -> None:
    """Print the last `lines`, and with `follow` all lines that are appended; LocalError if there is no log."""
    info = home.read_daemon()
    if info is not None and not info.logs_here:
        raise LocalError(
            f"the node (pid {info.pid}) runs in the foreground and logs where it was started: "
            "there, or see `journalctl -u shoal` or the container's logs",
            code="no-log",
        )
    try:
        with home.daemon_log.open(encoding="utf-8", errors="replace") as file:
            for line in deque(file, maxlen=lines):
                _print(line, as_json)
            for line in _appended(home.daemon_log, file) if follow else ():
                _print(line, as_json)
    except FileNotFoundError as error:
        raise LocalError(
            f"no node has logged into {home.daemon_log} yet: start one with `shoal node start`", code="no-log"
        ) from error


def _appended(path: Path, file: TextIO) -> Iterator[str]:
    """The whole lines that are appended from now on, to this file and to those that replace it at `path`."""
    part = ""
    while True:
        if line := file.readline():
            part += line
            if part.endswith("\n"):
                yield part
                part = ""
        elif _was_replaced(path, file):
            with path.open(encoding="utf-8", errors="replace") as fresh:
                yield from _appended(path, fresh)
        else:
            sys.stdout.flush()
            time.sleep(POLL)


def _was_replaced(path: Path, file: TextIO) -> bool:
    try:
        return not os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _print(line: str, as_json: bool) -> None:
    print(line.rstrip("\n") if as_json else for_people(line))


def for_people(line: str) -> str:
    """A JSON log line as text, as `HumanFormatter` (logs.py) writes it; any other line unchanged."""
    import json

    try:
        entry = json.loads(line)
        stamp, level, message = str(entry["time"])[:19].replace("T", " "), entry["level"], entry["message"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return printable(line)
    code = f" [{entry['code']}]" if "code" in entry else ""
    words = printable(f"{stamp} {'' if level == 'info' else f'{level}: '}{message}{code}")
    return "\n".join([words, *map(printable, str(entry.get("stack", "")).splitlines())])


def status(
    as_json: Json = False,
    whole: Annotated[
        bool, typer.Option("--long", envvar="SHOAL_STATUS_LONG", help="All addresses, and whole ids and digests.")
    ] = False,
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code",
            envvar="SHOAL_EXIT_CODE",
            help="A health check: exit with 3 if no node runs, 4 if it is alone, 6 if the swarm is SPLIT, 7 if a run "
            "has failed, 12 if it does not answer.",
        ),
    ] = False,
) -> None:
    """Show the node: am I alone, in which runs, how far, how well."""
    from shoal.node.api import present
    from shoal.node.client.cli.status_lines import show_status

    client = this_node()
    answer = client.status()
    if as_json:
        present.show_json(answer)
    else:
        show_status(answer, client.page(present.is_terminal()), whole)
    if exit_code:
        from shoal.node.api.status import verdict

        raise typer.Exit(verdict(answer))


def peers(as_json: Json = False) -> None:
    """Show the peers of this node's runs: how each is reached, why so, how far it is and how fast."""
    from shoal.node.api import present

    answer = this_node().peers()
    present.show_json(answer) if as_json else present.show_peers(answer)


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
        str,
        typer.Option(
            envvar="SHOAL_LOGS_RUN", help="The run of --round, if the node is in several.", autocompletion=complete_run
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Show what the node in the background has logged, or, with --round, what happened in a round."""
    from shoal.node.base.home import find_home

    if (round is None and run) or (round is not None and follow):
        from shoal.node.base.options import UsageError

        raise UsageError("--run goes with --round, and --follow without it", code="bad-flags")
    if round is None:
        show_log(find_home(), lines, follow, as_json)
    else:
        _show_round(round, run, as_json)


def _show_round(round: int, run: str, as_json: bool) -> None:
    from shoal.node.api import present
    from shoal.node.client.cli.round_lines import show_round

    client = this_node()
    timeline = client.timeline(run or _only_run(client.runs()), round)
    present.show_json(timeline) if as_json else show_round(timeline)


def _only_run(runs: Sequence[RunRow]) -> str:
    """The id of the only run that the node is in; LocalError if it is in none or several."""
    if len(runs) == 1:
        return str(runs[0]["run"])
    names = ", ".join(str(each["name"] or each["run"][:8]) for each in runs)
    raise LocalError(
        f"name the run with --run: this node is in {names}" if runs else "this node is in no run",
        code="ambiguous-run" if runs else "unknown-run",
    )


def version(as_json: Json = False) -> None:
    """Show the version of this command."""
    from shoal.node.api import present
    from shoal.protocol.net.system.version import shoal_version

    present.show_json({"version": shoal_version()}) if as_json else print(f"shoal {shoal_version()}")
