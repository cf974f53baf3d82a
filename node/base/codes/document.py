"""Prints docs/errors.md from the table of codes: `python -m shoal.node.base.codes.document > docs/errors.md`."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.node.base.codes import TABLES, Row
from shoal.node.base.exits import HELP

HEAD = """# Errors and warnings

Whatever goes wrong is said in one sentence: what happened, whose fault it is, and what to do. The word in brackets at
its end is its code, for programs and to search for:

    shoal: a node (pid 4711) already runs in /home/ada/.local/share/shoal: ... [home-taken]

A code stands for a kind of mistake and never changes its meaning. `shoal explain CODE` prints its row of the tables
below. Errors of the API have it as `code` ([api.md](api.md)), and so have the log's JSON lines and the warnings in
`shoal status --json`. The codes `not-possible`, `usage`, `shortage`, `peer-blamed` and `failed` are general: commands
do not show them, as the sentence says all. [bad-situations.md](bad-situations.md) shows what is said, and what is left
behind, in some eighty situations.

This page is printed from the tables in [node/base/codes/](../node/base/codes), by
`python -m shoal.node.base.codes.document`. A test compares the tables with the source both ways: each code that can be
given has a row, and each row is given somewhere.
"""


def document() -> str:
    """The text of docs/errors.md."""
    exits = [f"| {int(code)} | {text} |" for code, text in HELP.items()]
    ends = ["## Exit status", "", "| status | what it means |", "|---|---|", *exits]
    return "\n".join([HEAD, *(_section(*each) for each in TABLES), *ends]) + "\n"


def _section(title: str, about: str, rows: Mapping[str, Row]) -> str:
    lines = [f"| `{code}` | {row.what} | {row.fault} | {row.remedy} |" for code, row in rows.items()]
    head = ["| code | what happened | whose fault | what to do |", "|---|---|---|---|"]
    return "\n".join([f"## {title}", "", about, "", *head, *lines, ""])


if __name__ == "__main__":
    print(document(), end="")
