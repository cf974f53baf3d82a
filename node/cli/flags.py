"""Flags that several commands share, each declared once."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", envvar="SHOAL_JSON", help="Print JSON for programs.")]
NoTrain = Annotated[
    bool,
    typer.Option("--no-train", envvar="SHOAL_NO_TRAIN", help="Keep the state and vote, but do not train (weight 0)."),
]


def refuse(context: typer.Context, names: tuple[str, ...], why: str) -> None:
    """UsageError if somebody has chosen one of these parameters, by its flag or in the environment."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT"):
            from shoal.node.options import UsageError

            raise UsageError(f"--{name.replace('_', '-')} is {why}")
