"""What is shown while the swarm runs: a live table in a terminal, plain lines anywhere else.

The table has one row per peer; events (a round committed, a peer killed) scroll by above it. Without a terminal only
those lines are printed. With `--json` all of it goes to stderr, so that stdout holds the object alone.
Printing never blocks, even if nobody reads the output (lines.py).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, TextIO, cast

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shoal.node.base.lines import LineStream
from shoal.node.client.up.peers import LocalPeer

REDRAW_INTERVAL = 0.25  # seconds, at least
COLUMNS = ("peer", "state", "round", "phase", "step", "loss", "tokens/s", "sent", "received", "digest")


def console_on(stream: LineStream) -> Console:
    """A rich console that writes to `stream`."""
    return Console(file=cast("TextIO", stream))


def make_display(console: Console) -> LineDisplay:
    """A table if `console` writes to a terminal, otherwise lines."""
    return TableDisplay(console) if console.is_terminal and not console.is_dumb_terminal else LineDisplay(console)


class LineDisplay:
    """Shows the progress of a play: one line per event."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        """Print the line unchanged, without wrapping or markup."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, peers: Sequence[LocalPeer]) -> None:
        """Show the peers as they are now; here nothing, as the lines tell enough."""

    def __enter__(self) -> LineDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is open."""


class TableDisplay(LineDisplay):
    """Also shows a table of all peers below the lines."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live = Live(console=console, auto_refresh=False)
        self._drawn_at = 0.0

    def show(self, peers: Sequence[LocalPeer]) -> None:
        """Redraw the table, unless it was just redrawn, or the terminal has not read the last output yet."""
        now = time.monotonic()
        is_due = now - self._drawn_at >= REDRAW_INTERVAL and not getattr(self._console.file, "is_behind", False)
        self._drawn_at = now if is_due else self._drawn_at
        self._live.update(peer_table(peers), refresh=is_due)

    def __enter__(self) -> TableDisplay:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def peer_table(peers: Sequence[LocalPeer]) -> Table:
    """One row per peer, dead ones dimmed."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("peer", "state", "phase") else "right")
    for peer in peers:
        table.add_row(*(Text(cell) for cell in cells(peer)), style="" if peer.alive else "dim")
    return table


def cells(peer: LocalPeer) -> tuple[str, ...]:
    """One peer's row, in the order of COLUMNS; what is not known yet is a dash."""
    row = peer.row if peer.alive else {**peer.row, "phase": "dead", "tokens_per_second": None}
    state = str(peer.status.get("state", "starting")) if peer.alive else "KILLED"
    return (
        peer.name,
        state,
        _number(row.get("round")),
        str(row.get("phase") or "-"),
        _number(row.get("step")),
        _number(row.get("loss"), ".3f"),
        _number(row.get("tokens_per_second"), ",.0f"),
        human_bytes(row.get("bytes_sent")),
        human_bytes(row.get("bytes_received")),
        str(row.get("digest") or "-")[:8],
    )


def human_bytes(count: Any) -> str:
    """A number of bytes for people."""
    if count is None:
        return "-"
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def _number(value: Any, form: str = "") -> str:
    return "-" if value is None else format(value, form)
