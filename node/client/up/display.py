"""What is shown while the swarm runs: a live table in a terminal, plain lines anywhere else.

The table has one row per peer; events (a round committed, a peer killed) scroll by above it, and below it stands what
is waited for (waiting.py). Without a terminal only lines are printed, about what is waited for now and then. With
`--json` all of it goes to stderr, so that stdout holds the object alone. Printing never blocks, even if nobody reads
it (lines.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TextIO, cast

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shoal.node.base.lines import LineStream
from shoal.node.client.up.peers import LocalPeer
from shoal.node.client.waiting import IN_A_FILE, PRINTED_EVERY, Step, line, takes_blocks

REDRAW_INTERVAL = 0.25  # seconds, at least
COLUMNS = ("peer", "state", "round", "phase", "step", "loss", "tokens/s", "sent", "received", "digest")


def console_on(stream: LineStream) -> Console:
    """A rich console that writes to `stream`."""
    return Console(file=cast("TextIO", stream))


def make_display(console: Console) -> LineDisplay:
    """A table if `console` writes to a terminal, otherwise lines."""
    return TableDisplay(console) if console.is_terminal and not console.is_dumb_terminal else LineDisplay(console)


@dataclass(slots=True)
class _Wait:
    """Something that is waited for."""

    what: str
    began: float
    shown_at: float  # or when it began


class LineDisplay:
    """Shows the progress of a play: one line per event."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._waits: list[_Wait] = []

    def say(self, text: str) -> None:
        """Print the line unchanged, without wrapping or markup."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, peers: Sequence[LocalPeer]) -> None:
        """Show the peers as they are now; here nothing, as the lines tell enough."""

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """While the context is open, this is waited for, and `look` shows it; of several the newest."""
        wait = _Wait(what, time.monotonic(), time.monotonic())
        self._waits.append(wait)
        try:
            yield
        finally:
            self._waits.remove(wait)

    def look(self, step: Step) -> None:
        """Show how far that is which is waited for; to be called often."""
        now = time.monotonic()
        if self._waits and now - self._waits[-1].shown_at >= PRINTED_EVERY:
            self._waits[-1].shown_at = now
            self.say(self._line(step, IN_A_FILE))

    def _line(self, step: Step, columns: int) -> str:
        """What is waited for, in one line; empty if nothing is."""
        if not self._waits:
            return ""
        wait, is_plain = self._waits[-1], not takes_blocks(self._console.file)
        return line(wait.what, step, time.monotonic() - wait.began, columns, is_plain)

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
        self._peers: Sequence[LocalPeer] = ()
        self._step = Step()

    def show(self, peers: Sequence[LocalPeer]) -> None:
        """Redraw the table, unless it was just redrawn, or the terminal has not read the last output yet."""
        self._peers = peers
        self._draw()

    def look(self, step: Step) -> None:
        """See LineDisplay."""
        self._step = step
        self._draw()

    def _draw(self) -> None:
        now = time.monotonic()
        is_due = now - self._drawn_at >= REDRAW_INTERVAL and not getattr(self._console.file, "is_behind", False)
        self._drawn_at = now if is_due else self._drawn_at
        below = self._line(self._step, self._console.width)
        parts = ([peer_table(self._peers)] if self._peers else []) + ([Text(below)] if below else [])
        self._live.update(Group(*parts), refresh=is_due)

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
