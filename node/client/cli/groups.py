"""The help of a group of commands: a whole sentence about each, which click would cut at the terminal's width."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

UNCUT = 1_000  # characters, more than any line about a command has


class WholeLines(TyperGroup):
    """Folds the lines about its commands instead of cutting them; the types are Any, as typer may bring a click."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, each with the first sentence of its help."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, each.get_short_help_str(UNCUT)) for name, each in found if each is not None and not each.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
