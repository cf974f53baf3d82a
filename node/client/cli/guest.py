"""Commands by which the node of this SHOAL_HOME makes room for a while, or ends with manners."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.node.base.lines import printable
from shoal.node.client.cli.flags import Json, this_node

if TYPE_CHECKING:
    from shoal.node.api.answers import PauseStatus


def pause(
    duration: Annotated[
        str | None,
        typer.Option("--for", envvar="SHOAL_PAUSE_FOR", metavar="DURATION", help="90s, 20min, 2h or 1d."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Leave the runs and free the devices, for a while or until `shoal resume`; the node stays."""
    from shoal.node.base.quantities import parse_duration

    seconds = parse_duration("--for", duration) if duration is not None else None
    _show(this_node().pause(seconds), as_json)


def resume(as_json: Json = False) -> None:
    """End a pause: enter the runs again, unless one of the node's own rules keeps it paused."""
    _show(this_node().resume(), as_json)


def _show(status: PauseStatus, as_json: bool) -> None:
    from shoal.node.api.present import short, show_json

    if as_json:
        show_json(status)
        return
    if not status["paused"]:
        print("the node goes on")
    else:
        print(printable(f"paused: {'; '.join(status['reasons'])}"))
        print("its devices are free" if status["freed"] else "its workers are still ending, see `shoal status`")
        if not status["left"]:
            print("its runs are still being left; `shoal status` will say if one cannot be kept")
    for run in status["unsaved"]:
        print(printable(f"{run['name']} ({short(run['run'])}): {run['words']}"), file=sys.stderr)


def drain(
    within: Annotated[
        str,
        typer.Option(
            "--within", envvar="SHOAL_DRAIN_WITHIN", metavar="DURATION", help="Stop after that long in any case."
        ),
    ] = "10min",
) -> None:
    """Stop the node once the rounds under way are committed, so that nothing that it has trained is lost."""
    from shoal.node.base.home import find_home
    from shoal.node.base.quantities import parse_duration
    from shoal.node.client import launch

    print(printable(launch.drain(find_home(), parse_duration("--within", within), _say)))


def restart() -> None:
    """Stop the node and start it again in the background, with the flags and variables of its last start."""
    from shoal.node.api import present
    from shoal.node.base import started
    from shoal.node.base.home import find_home
    from shoal.node.base.settings import BY_KEY
    from shoal.node.client import launch
    from shoal.node.client.cli.node import choose_settings, settings_of

    home = find_home()
    launch.check_is_ours_to_restart(home)
    given = {key: BY_KEY[key].read(key, item, home.root) for key, item in started.recall(home).items()}
    options = settings_of(home, choose_settings(home, given))  # before anything is stopped: a mistake stops nothing
    print(printable(launch.stop(home, _say)))
    words = [word for key, value in given.items() for word in BY_KEY[key].words(value)]
    for line in (*launch.start_in_background(options, words), f"page {this_node().page(present.is_terminal())}"):
        print(printable(line))


def _say(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)
