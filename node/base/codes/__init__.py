"""What each code of an error, a warning or a finding means: what happened, whose fault it is, what to do.

A code stands for a kind of mistake, and never changes its meaning. The tables are in the files beside this one;
docs/errors.md is printed from them, and `shoal explain CODE` shows a row. A test reads the source for the codes that it
can give: each has a row here, and each row is given somewhere.
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.node.base.codes.errors import ERRORS
from shoal.node.base.codes.network import FINDINGS, STEPS, VERDICTS, WAYS
from shoal.node.base.codes.row import Fault, Row
from shoal.node.base.codes.warnings import PAUSES, WARNINGS

__all__ = ["CODES", "TABLES", "Fault", "Row", "described", "nearest"]

TABLES: tuple[tuple[str, str, Mapping[str, Row]], ...] = (
    ("Errors", "A command, an answer of the API or a line of the log ends with one of these.", ERRORS),
    ("Warnings and events of the log", "In the log, and some in `shoal status`.", WARNINGS),
    ("Why a node is paused", "In `shoal status --json`, as `pause.codes`.", PAUSES),
    (
        "Tries to reach a peer",
        "What came of each step, in `shoal doctor`; errors of the network have these codes, too.",
        STEPS,
    ),
    ("Verdicts of `shoal doctor`", "Those on a peer that was not reached are the codes of its steps.", VERDICTS),
    ("Why a peer is reached as it is", "In `shoal peers --json`, as `reason_code`.", WAYS),
    ("Findings of `shoal netcheck`", "The levels `warn` and `bad` need somebody's attention.", FINDINGS),
)
CODES: Mapping[str, Row] = {code: row for _, _, rows in TABLES for code, row in rows.items()}


def described(code: str, row: Row) -> str:
    """A row in words, for a terminal."""
    lines = [f"{code}: {row.what}", f"Whose fault: {row.fault}."]
    return "\n".join([*lines, *([f"What to do: {row.remedy}"] if row.remedy else [])])


def nearest(wrong: str) -> list[str]:
    """Codes like one that does not exist."""
    import difflib

    return difflib.get_close_matches(wrong, CODES, n=3, cutoff=0.5)
