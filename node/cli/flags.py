"""Flags that several commands share, each declared once."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", envvar="SHOAL_JSON", help="Print JSON for programs.")]
NoTrain = Annotated[
    bool,
    typer.Option("--no-train", envvar="SHOAL_NO_TRAIN", help="Keep the state and vote, but do not train (weight 0)."),
]
