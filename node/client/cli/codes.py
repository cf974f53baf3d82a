"""The command `shoal explain`: what the code at the end of an error or a warning means."""

from __future__ import annotations

from typing import Annotated

import typer

from shoal.node.client.cli.flags import Json


def _complete_code(incomplete: str) -> list[str]:
    from shoal.node.base.codes import CODES

    return [code for code in CODES if code.startswith(incomplete)]


def explain(
    code: Annotated[
        str,
        typer.Argument(
            metavar="CODE", help="As in brackets at the end of the sentence.", autocompletion=_complete_code
        ),
    ],
    as_json: Json = False,
) -> None:
    """Say what a code of an error, a warning or a finding means, whose fault that is, and what to do."""
    from shoal.node.base.codes import CODES, described, nearest
    from shoal.node.base.options import UsageError

    wanted = code.strip().strip("[]")
    row = CODES.get(wanted)
    if row is None:
        like = nearest(wanted)
        known = f"the nearest are {', '.join(like)}" if like else "docs/errors.md lists all of them"
        raise UsageError(f"there is no code '{wanted[:80]}'; {known}", code="unknown-name")
    if as_json:
        from shoal.node.api.present import show_json

        show_json({"code": wanted, "fault": row.fault, "what": row.what, "remedy": row.remedy})
        return
    print(described(wanted, row))
