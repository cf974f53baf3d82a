"""The command `shoal bugreport`: shows what would be in a report, asks, and writes it."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from shoal.node.base.lines import printable


def bugreport(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="The archive to write, a .tar.gz; by default one with the date, here."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", envvar="SHOAL_YES", help="Write it without being asked.")] = False,
    show: Annotated[
        bool, typer.Option("--show", envvar="SHOAL_BUGREPORT_SHOW", help="Print what would be in it instead.")
    ] = False,
) -> None:
    """Make an archive that helps to find out what is wrong with the node, also with one that hangs or does not run.

    Keys, tokens, public addresses, host names, and names and folders of users are taken out first.
    """
    from shoal.node.base.home import find_home
    from shoal.node.client.bugreport.archive import check_free, default_name, write_archive
    from shoal.node.client.bugreport.report import make_report, removed_in_words

    now = time.time()
    path = file if file is not None else Path(default_name(now))
    if not show:
        check_free(path)
        _check_can_ask(yes)
    print("gathering what is known of the node; this takes some seconds", file=sys.stderr, flush=True)
    report = make_report(find_home(), now)
    if show:
        _show(report.texts)
        return
    for name, text in report.texts.items():
        print(f"{len(text.encode(errors='replace')):>9} {printable(name)}")
    print(f"\ntaken out: {removed_in_words(report.removed)}; `shoal bugreport --show` prints the rest")
    if not yes and not _confirmed(path):
        print("nothing was written")
        return
    size = write_archive(path, report.texts, now)
    print(f"wrote {path} ({size} bytes, readable by you only); nothing was sent to anybody")


def _show(texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        print(f"==> {printable(name)} <==")
        for line in text.splitlines():
            print(printable(line))
        print()


def _check_can_ask(yes: bool) -> None:
    """UsageError if the user must be asked and cannot be."""
    from shoal.node.api.present import is_terminal
    from shoal.node.base.options import UsageError

    if not yes and not (sys.stdin.isatty() and is_terminal()):
        raise UsageError(
            "nobody is here to say yes: say --yes to write the report, or --show to look at it", code="nobody-asked"
        )


def _confirmed(path: Path) -> bool:
    print(f"Write {path}? [Y/n] ", end="", flush=True)
    answer = sys.stdin.readline()
    return answer.endswith("\n") and answer.strip().lower() in ("", "y", "yes")
