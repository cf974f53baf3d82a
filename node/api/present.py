"""Prints answers of the node: for people in aligned columns, with colour in a terminal; for programs as JSON.

Answers may quote what a peer sent, so no control character reaches the terminal.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import Any

from shoal.node.api.answers import Answer, FoundRun, PeerRow, Preview, PublicRun, Round, RunDetails
from shoal.node.api.status import join_command
from shoal.node.base import quantities
from shoal.node.base.lines import printable

CHECKPOINT_COLUMNS = ("run", "name", "round", "samples", "state", "peer", "MB", "saved", "path")
PUBLIC_COLUMNS = ("run", "name", "round", "members", "to join")
SAME_COLUMNS = ("", "run", "created by", "round", "members")
PEER_COLUMNS = ("peer", "run", "round", "path", "rtt ms", "sends", "receives")
WIDE = 116  # columns that whole PeerIDs need
END = 12  # last characters of a PeerID that are shown in fewer columns


def show_json(answer: Any) -> None:
    """Print `answer` for programs."""
    print(json.dumps(answer, indent=2))


def show_peers(peers: Sequence[PeerRow]) -> None:
    """One line per peer and run, and below why each is reached as it is.

    A narrow terminal shows only the end of each PeerID, which `shoal doctor` takes as well.
    """
    if not peers:
        print("no peers")
        return
    width = shutil.get_terminal_size((WIDE, 24)).columns if is_terminal() else WIDE
    show_table(PEER_COLUMNS, [_peer_row(each, whole=width >= WIDE) for each in peers])
    reasons = {each["peer"]: each["reason"] for each in peers if each.get("reason")}
    if reasons:
        print()
    for peer, reason in reasons.items():
        print(textwrap.fill(f"{clean(peer[-6:])}: {clean(reason)}", width, subsequent_indent=" " * 8))


def _peer_row(peer: PeerRow, whole: bool) -> list[Any]:
    is_up = peer.get("path") is not None
    rates = [bits(peer.get(key)) or ("not yet" if is_up else None) for key in ("send_rate", "receive_rate")]
    name = peer["peer"] if whole else peer["peer"][-END:]
    return [name, short(peer.get("run")), peer.get("round"), peer.get("path"), number(peer.get("rtt_ms")), *rates]


def show_public_runs(runs: Sequence[PublicRun]) -> None:
    """One line per announced run, with the command that joins it."""
    if not runs:
        print("no public run was announced; one is public if its manifest says `public = true`")
        return
    rows = [[short(run["run"]), run["name"], run["round"], run["members"], join_command(run)] for run in runs]
    show_table(PUBLIC_COLUMNS, rows)


def show_same_runs(runs: Sequence[FoundRun]) -> None:
    """One line per run of a manifest; those that can be joined are numbered."""
    numbers = itertools.count(1)
    firsts = ["here" if run["joined"] else next(numbers) for run in runs]
    rows = [[short(run["run"]), run["author"][-END:], run["round"], run["members"]] for run in runs]
    show_table(SAME_COLUMNS, [[first, *row] for first, row in zip(firsts, rows, strict=True)])


def show_checkpoints(rows: Sequence[Answer]) -> None:
    """One line per checkpoint, and what is wrong with the damaged ones."""
    if not rows:
        print("no checkpoints")
        return
    whole = [row for row in rows if not row["problem"]]
    if whole:
        show_table(CHECKPOINT_COLUMNS, [_checkpoint_row(row) for row in whole])
    for row in rows:
        if row["problem"]:
            print(f"{clean(row['path'])} is damaged: {clean(row['problem'])}")


def bits(rate: Any) -> str | None:
    """A rate in bytes a second, printed in bits a second; None if it is no number."""
    if not isinstance(rate, int | float):
        return None
    amount, units = 8.0 * rate, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s"]
    while amount >= 1000 and len(units) > 1:
        amount /= 1000
        units.pop(0)
    return f"{amount:.{0 if amount >= 10 else 1}f} {units[0]}"


def show_run(run: RunDetails) -> None:
    """A run's manifest, members and last rounds."""
    show_pairs([("run", run.get("run")), ("name", run.get("name")), ("author", run.get("author"))])
    for key, value in run.get("manifest", {}).items():
        if isinstance(value, dict):
            _show_table_of_manifest(key, value)
    if members := run.get("members"):
        columns = tuple(members[0])
        print()
        show_table(columns, [_member_row(each, columns) for each in members])
    if rounds := run.get("rounds"):
        print()
        if any(each.get("words") for each in rounds):
            show_table(("round", "seconds", "bytes", "root", "what"), [_own_round_row(each) for each in rounds])
        else:
            columns = ("round", "entry", "members", "contributors", "seconds", "bytes", "digest")
            show_table(columns, [_round_row(each) for each in rounds])


def _show_table_of_manifest(name: str, table: Answer) -> None:
    """A table of a manifest without the keys that are not given, folded in a terminal."""
    given = [f"{clean(key)}={clean(value)}" for key, value in table.items() if value not in (None, "", [])]
    if given:
        text = f"{clean(name)}: {', '.join(given)}"
        columns = shutil.get_terminal_size().columns if is_terminal() else sys.maxsize
        print(textwrap.fill(text, columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))


def _checkpoint_row(row: Answer) -> list[Any]:
    saved = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["saved_at"]))
    of = (short(row["run"]), row["name"], row["round"], row["samples"], short(row["root"]), row["peer"][-6:])
    return [*of, f"{row['bytes'] / 1e6:.1f}", saved, row["path"]]


def _member_row(each: Answer, columns: Sequence[str]) -> list[Any]:
    shown = {**each, "digest": short(each.get("digest")), "root": short(each.get("root"))}
    shown["loss"] = number(each.get("loss"), 4)
    return [shown.get(column) for column in columns]


def _round_row(each: Round) -> list[Any]:
    plain = [each.get(key) for key in ("round", "entry", "members", "contributors")]
    return [*plain, number(each.get("seconds"), 2), size(each.get("bytes")), short(each.get("digest"))]


def _own_round_row(each: Round) -> list[Any]:
    figures = [number(each.get("seconds"), 2), size(each.get("bytes")), short(each.get("digest"))]
    return [each.get("round"), *figures, each.get("words")]


def show_preview(preview: Preview) -> None:
    """What joining a run would mean."""
    print(f"{clean(preview['name'])}, run {preview['run'][:8]}, signed by {clean(preview['author'])}\n")
    show_pairs([(name, words) for name, words in preview["words"]])
    if lack := preview["memory"].get("problem"):
        print(f"\n{clean(lack)}")


def size(count: Any) -> str | None:
    """A number of bytes in binary units; None if `count` is no number."""
    return quantities.size(count) if isinstance(count, int | float) else None


def number(value: Any, digits: int = 1) -> Any:
    """A number with a fixed count of digits after the point."""
    return f"{value:.{digits}f}" if isinstance(value, float | int) else value


def short(value: Any) -> Any:
    """The beginning of a digest, or of a run's id."""
    return value[:8] if isinstance(value, str) else value


def clean(value: Any) -> str:
    """A value as text without control characters; None is a dash."""
    plain = {None: "-", True: "yes", False: "no"}
    text = plain[value] if value is None or isinstance(value, bool) else str(value)
    if isinstance(value, list):
        text = ", ".join(map(str, value))
    return printable(text)


def show_pairs(pairs: Sequence[tuple[str, Any]]) -> None:
    """One name and its value per line."""
    show_table((), [[name, value] for name, value in pairs])


def show_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Aligned columns under their names."""
    lines = [[clean(cell) for cell in row] for row in rows]
    if is_terminal():
        _show_rich(columns, lines)
        return
    if columns:
        lines.insert(0, [name.upper() for name in columns])
    widths = [max(len(line[index]) for line in lines) for index in range(len(lines[0]))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def colour(text: str, style: str) -> str:
    """`text` in a style, if standard output is a terminal and NO_COLOR is not set."""
    # ECMA-48
    codes = {
        "bold": "1",
        "dim": "2",
        "green": "32",
        "yellow": "33",
        "bold red": "1;31",
        "bold green": "1;32",
    }  # ECMA-48
    wanted = is_terminal() and not os.environ.get("NO_COLOR")
    return f"\033[{codes[style]}m{text}\033[0m" if wanted else text


def is_terminal() -> bool:
    """Whether standard output is a terminal, and not a file or a log."""
    return sys.stdout.isatty()


def _show_rich(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=bool(columns), header_style="bold", pad_edge=False)
    for name in columns or [""] * len(lines[0]):
        table.add_column(name.upper(), no_wrap=True)
    for line in lines:
        table.add_row(*map(Text, line))
    wanted = sum(max(map(len, column)) + 2 for column in zip(columns or lines[0], *lines, strict=True))
    Console(width=wanted).print(table)  # a long line breaks where the terminal ends: an address stays whole to copy
