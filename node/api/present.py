"""Prints answers of the node: for people in aligned columns, with colour in a terminal; for programs as JSON.

Answers may quote what a peer sent, so no control character reaches the terminal.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import Any

from shoal.node.api.answers import Answer, PeerRow, PublicRun, Round, RunDetails, RunRow, Status
from shoal.node.api.status import advice, headline, is_first_back, is_over, label
from shoal.node.base import quantities
from shoal.node.base.lines import printable

COLOURS = {"SOLO": "yellow", "SPLIT": "bold red", "CONNECTED": "green", "IN-ROUND": "bold green"}
CHECKPOINT_COLUMNS = ("run", "name", "round", "samples", "state", "peer", "MB", "saved", "path")
RUN_COLUMNS = ("run", "name", "round", "members", "loss", "step", "samples", "tok/s", "digest", "phase")
PUBLIC_COLUMNS = ("run", "name", "round", "members", "link")
PEER_COLUMNS = ("peer", "run", "round", "path", "rtt ms", "sends", "receives")
WORKER_COLUMNS = ("run", "device", "device memory", "memory", "micro-batch", "trains", "MFU")
WIDE = 116  # columns that whole PeerIDs need
END = 12  # last characters of a PeerID that are shown in fewer columns


def show_json(answer: Any) -> None:
    """Print `answer` for programs."""
    print(json.dumps(answer, indent=2))


def show_status(status: Status, page: str) -> None:
    """The node, the URL of its page, what is wrong with it, and its runs."""
    show_pairs(
        [
            ("peer", status.get("peer")),
            ("state", status.get("state")),
            ("memory", size(status.get("memory"))),
            ("reachability", status.get("reachability")),
            *_mapping(status.get("port_mapping") or {}),
            *_line(status.get("line") or {}),
            ("dht", _dht(status.get("dht") or {})),
            *_limits(status),
            ("addresses", ", ".join(map(str, status.get("addresses", [])))),
            *_untold(status.get("untold_addresses") or []),
            ("version", status.get("version")),
            ("page", page),
        ]
    )
    for warning in status.get("warnings") or ():
        print(f"\n{clean(warning['words'])} ({clean(warning['code'])})")
    remedy = advice(status) or ""
    says_more = is_first_back(status) or is_over(status)
    if remedy or status.get("paused") or status.get("obstacle") or says_more:
        print(f"\n{clean(headline(status))} {remedy}".rstrip())
    if runs := status.get("runs"):
        print()
        show_runs(runs)
        _show_workers([run for run in runs if run.get("worker_memory") or run.get("device")])


def _untold(addresses: Sequence[str]) -> list[tuple[str, str]]:
    """A row with our addresses that others are not told, if there are any."""
    return [("not told to others", f"{', '.join(addresses)} (too many)")] if addresses else []


def _mapping(mapping: Answer) -> list[tuple[str, str]]:
    """A row with the port that the router forwards, or why it does not, if one was asked."""
    if mapping.get("external") and not mapping.get("behind_another_nat"):
        return [("port mapping", f"{mapping['external']} by {mapping['protocol']}")]
    return [("port mapping", f"none: {mapping['error']}")] if mapping.get("error") else []


def _limits(status: Status) -> list[tuple[str, str]]:
    """A row with the owner's limits, if there are any."""
    words = quantities.limits_in_words(status.get("limits") or {})
    return [("limits", words)] if words else []


def _line(line: Answer) -> list[tuple[str, str]]:
    """A row with the speed of our own line, as far as it was measured."""
    known = [f"{bits(line[way])} {way}" for way in ("up", "down") if line.get(way)]
    return [("line", ", ".join(known))] if known else []


def show_runs(runs: Sequence[RunRow]) -> None:
    """One line per run, and what holds it up."""
    if not runs:
        print("in no run; `shoal run create` or `shoal run join` changes that")
        return
    show_table(RUN_COLUMNS, [_run_row(run) for run in runs])
    for run in runs:
        if run.get("validation_loss") is not None:
            print(f"{clean(label(run))}: {_validation(run)}")
        if run.get("failure"):
            print(f"{clean(label(run))} has failed on this node: {clean(run['failure'])}")
        elif run.get("waiting_for"):
            print(f"{clean(label(run))}: {clean(run['waiting_for'])}")
        for warning in run.get("warnings") or ():
            print(f"{clean(label(run))}: {clean(warning['words'])} ({clean(warning['code'])})")


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
    """One line per announced run; `shoal run join` takes its link."""
    if not runs:
        print("no public run was announced; one is public if its manifest says `public = true`")
        return
    rows = [[short(run["run"]), run["name"], run["round"], run["members"], run["link"]] for run in runs]
    show_table(PUBLIC_COLUMNS, rows)


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


def _show_workers(runs: Sequence[RunRow]) -> None:
    """One line per worker: its device, its memory and its utilisation."""
    if runs:
        print()
        show_table(WORKER_COLUMNS, [_worker_row(run) for run in runs])


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
            print(f"{clean(key)}: " + ", ".join(f"{clean(k)}={clean(v)}" for k, v in value.items()))
    if members := run.get("members"):
        columns = tuple(members[0])
        print()
        show_table(columns, [_member_row(each, columns) for each in members])
    if rounds := run.get("rounds"):
        print()
        if any(each.get("words") for each in rounds):
            show_table(("round", "seconds", "bytes", "root", "what"), [_own_round_row(each) for each in rounds])
        else:
            columns = ("round", "attempt", "members", "contributors", "seconds", "bytes", "digest")
            show_table(columns, [_round_row(each) for each in rounds])


def _dht(dht: Answer) -> str | None:
    """Our part in the DHT, in a phrase."""
    if not dht:
        return None
    part = f"serving, holds {_count(dht['records'], 'record')}" if dht["serves"] else "a client only"
    return f"{part}, knows {_count(dht['servers'], 'server')}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _checkpoint_row(row: Answer) -> list[Any]:
    saved = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["saved_at"]))
    of = (short(row["run"]), row["name"], row["round"], row["samples"], short(row["root"]), row["peer"][-6:])
    return [*of, f"{row['bytes'] / 1e6:.1f}", saved, row["path"]]


def _run_row(run: RunRow) -> list[Any]:
    return [
        short(run.get("run")),
        run.get("name"),
        run.get("round"),
        run.get("members"),
        number(run.get("loss"), 4),
        run.get("step"),
        run.get("samples"),
        number(run.get("tokens_per_second"), 0),
        short(run.get("digest")),
        _phase(run),
    ]


def _validation(run: RunRow) -> str:
    """The validation loss, with the round to which it belongs."""
    return f"validation loss {number(run['validation_loss'], 4)} after round {clean(run.get('validation_round'))}"


def _phase(run: RunRow) -> Any:
    if experts := run.get("experts"):
        return f"{run.get('phase')}, {experts['finished']} of {experts['parts']} experts finished"
    return run.get("phase")


def _worker_row(run: RunRow) -> list[Any]:
    memory = [size(run.get(key)) for key in ("device_memory", "worker_memory")]
    shares = [_share(run.get(key)) for key in ("utilisation", "model_flops_utilization")]
    return [run.get("name"), run.get("device"), *memory, run.get("micro_batch"), *shares]


def _share(value: Any) -> str | None:
    return f"{value:.0%}" if isinstance(value, float | int) else None


def _member_row(each: Answer, columns: Sequence[str]) -> list[Any]:
    shown = {**each, "digest": short(each.get("digest")), "root": short(each.get("root"))}
    shown["loss"] = number(each.get("loss"), 4)
    return [shown.get(column) for column in columns]


def _round_row(each: Round) -> list[Any]:
    plain = [each.get(key) for key in ("round", "attempt", "members", "contributors")]
    return [*plain, number(each.get("seconds"), 2), size(each.get("bytes")), short(each.get("digest"))]


def _own_round_row(each: Round) -> list[Any]:
    figures = [number(each.get("seconds"), 2), size(each.get("bytes")), short(each.get("digest"))]
    return [each.get("round"), *figures, each.get("words")]


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
    codes = {"bold": "1", "dim": "2", "green": "32", "yellow": "33", "bold red": "1;31"}  # ECMA-48
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
        table.add_row(*(Text(cell, style=COLOURS.get(cell, "")) for cell in line))
    wanted = sum(max(map(len, column)) + 2 for column in zip(columns or lines[0], *lines, strict=True))
    Console(width=wanted).print(table)  # a long line breaks where the terminal ends: an address stays whole to copy
