"""`shoal report`: the page and the picture of a `shoal up`, made again from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(folder: Annotated[Path, typer.Argument(help="The folder that `shoal up` has left.")]) -> None:
    """Make report.html and loss.png again from what a `shoal up` has left."""
    from shoal.node.report import make_report

    print(make_report(folder))
