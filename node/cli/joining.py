"""Joining a run from the command line: look at it, ask, join.

Whoever joins a stranger's run is shown what it is and asked, so a program has to say --yes. Where no node runs, one is
started in the background, also for who creates a run; if nothing comes of it all, that one is stopped again.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

from shoal.protocol.errors import LocalError

if TYPE_CHECKING:
    from shoal.node.client import Client


class NotJoined(LocalError):
    """The person has said no."""


def join(text: str, train: bool, checkpoint: str, yes: bool, as_json: bool) -> dict[str, Any]:
    """Join the run that `text` names; the node's answer."""
    link = _link(text)
    _check_that_somebody_answers(yes, as_json)
    with node_at_hand() as client:
        preview = client.preview_run(link)
        if not as_json:
            _show(preview)
        if train and preview["data"]["problem"]:
            raise LocalError(
                f"this machine cannot train on the run's data: {preview['data']['problem']}; "
                "--no-train joins to keep the state and vote"
            )
        if train and preview["memory"].get("problem"):
            raise LocalError(f"not joined: {preview['memory']['problem']}")
        if not yes and not _confirmed():
            raise NotJoined("not joined")
        if train and preview["data"]["missing"] and not as_json:
            print("downloading the data first; in another terminal `shoal status` says how far it is", file=sys.stderr)
        return client.join_run(_what_was_shown(link, preview), train, checkpoint)


def look(text: str) -> dict[str, Any]:
    """What joining would mean."""
    link = _link(text)
    with node_at_hand(keep=False) as client:
        return client.preview_run(link)


@contextmanager
def node_at_hand(keep: bool = True) -> Iterator[Client]:
    """A caller of this home's node, which is started if need be; and stopped again after a failure, or if not kept."""
    from shoal.node import launch
    from shoal.node.client import Client
    from shoal.node.home import find_home

    home = find_home()
    if home.holder() is not None:
        yield Client(home)
        return
    _start()
    client = Client(home)
    print(f"started a node in the background (pid {client.pid}); its log is {home.daemon_log}\n", file=sys.stderr)
    try:
        yield client
    except BaseException:  # Ctrl-C at the question, too: nobody asked for a node without a run
        launch.stop(home, lambda _: None)
        raise
    if not keep:
        launch.stop(home, lambda _: None)


def _start() -> None:
    """As `shoal node start` does, with the variables that it knows."""
    from shoal.node.cli import node

    try:
        with redirect_stdout(io.StringIO()):
            node.app(["start", "--background"], prog_name="shoal node")
    except SystemExit as end:
        if end.code:
            raise


def _link(text: str) -> str:
    """What the person named, if it can be a run; UsageError if not."""
    from shoal.node.options import UsageError, names_a_run

    text = text.strip()
    if not names_a_run(text):
        raise UsageError(
            f"'{text[:80]}' names no run: give its link (shoal:..., in quotes), or its id (64 hex characters, or the "
            "first 8 or more)"
        )
    return text


def _what_was_shown(link: str, preview: dict[str, Any]) -> str:
    """The run by its whole id: by the begin of it another one could be meant a moment later."""
    from shoal.node.options import is_run_id

    run: str = preview["run"]
    return run if is_run_id(link) and not is_run_id(link, whole=True) else link


def _check_that_somebody_answers(yes: bool, as_json: bool) -> None:
    from shoal.node.cli.present import is_terminal
    from shoal.node.options import UsageError

    if yes:
        return
    if as_json:
        raise UsageError("--json asks no questions: say --yes to join, or look first with `shoal run preview`")
    if not (sys.stdin.isatty() and is_terminal()):
        raise UsageError("nobody is here to say yes: say --yes to join, or look first with `shoal run preview`")


def _show(preview: dict[str, Any]) -> None:
    from shoal.node.cli.preview import show_preview

    show_preview(preview)
    print()


def _confirmed() -> bool:
    print("Join? [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
