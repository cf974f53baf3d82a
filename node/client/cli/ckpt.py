"""Commands about checkpoints; none of them needs a running node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal.node.base.exits import Exit
from shoal.node.client.cli.flags import Json
from shoal.node.client.cli.groups import WholeLines
from shoal.node.client.waiting import Step, Waiting

app = typer.Typer(
    cls=WholeLines, no_args_is_help=True, rich_markup_mode=None, help="List, verify and export checkpoints."
)


@app.command()
def ls(
    place: Annotated[
        Path | None,
        typer.Argument(metavar="FOLDER", help="A folder to look in; without it, this node's home."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List checkpoints, each run's oldest first; a damaged one says what is wrong with it."""
    from shoal.node.api import present
    from shoal.node.base.home import find_home
    from shoal.node.training.checkpoint.scan import as_json as row_of
    from shoal.node.training.checkpoint.scan import find

    rows = [row_of(found) for found in find(place or find_home().root)]
    present.show_json(rows) if as_json else present.show_checkpoints(rows)


@app.command()
def verify(
    place: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A checkpoint, or a folder with several.")],
    as_json: Json = False,
) -> None:
    """Read checkpoints through: every file's hash and the root of the state. Exits with 1 if one is damaged."""
    from shoal.node.api import present
    from shoal.node.api.answers import Checkpoint
    from shoal.node.base.room import NoRoom
    from shoal.node.training.checkpoint.read import load
    from shoal.node.training.checkpoint.scan import FoundCheckpoint, find
    from shoal.node.training.checkpoint.scan import as_json as row_of
    from shoal.protocol.base.errors import LocalError

    rows: list[Checkpoint] = []
    every = list(find(place))
    with Waiting("reading checkpoints", lambda: Step(f"{len(rows)} of {len(every)}", len(rows) / max(1, len(every)))):
        for found in every:
            if not found.problem:
                try:
                    load(found.path)
                except NoRoom:  # this machine lacks memory, the checkpoint may be fine
                    raise
                except LocalError as error:
                    found = FoundCheckpoint(found.path, None, str(error))
            rows.append(row_of(found))
    if not rows:
        raise LocalError(f"there is no checkpoint in {place}", code="checkpoint-missing")
    present.show_json(rows) if as_json else present.show_checkpoints(rows)
    intact = sum(not row["problem"] for row in rows)
    if intact and not as_json:
        number = "" if len(rows) == 1 else f"all {intact} " if intact == len(rows) else f"{intact} of {len(rows)} "
        print(f"{number}intact: every file has its hash, and the state its root")
    if intact < len(rows):
        raise typer.Exit(Exit.FAILED)


@app.command("export")
def export_model(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A checkpoint's folder.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to make.")],
    tokenizer: Annotated[
        str,
        typer.Option(
            envvar="SHOAL_CKPT_TOKENIZER", metavar="FILE", help="The run's tokenizer.json, where it is not found."
        ),
    ] = "",
) -> None:
    """Write the model, and its tokenizer, as a folder that Hugging Face's transformers opens."""
    with Waiting("writing the model"):
        lacking = _export(checkpoint, out, tokenizer)
    print(f"wrote {out}: open it with AutoModelForCausalLM.from_pretrained({str(out)!r})")
    if lacking:
        print(f"without a tokenizer: {lacking}")


def _export(checkpoint: Path, out: Path, tokenizer: str) -> str:
    """Write the model; returns why there is no tokenizer beside it, or an empty string."""
    from shoal.node.training.checkpoint.export import export
    from shoal.node.training.checkpoint.tokenizer import tokenizer_of_checkpoint
    from shoal.protocol.base.errors import LocalError

    lacking = ""
    try:
        content = tokenizer_of_checkpoint(checkpoint, tokenizer)
    except LocalError as error:
        if tokenizer:
            raise
        content, lacking = None, str(error)
    export(checkpoint, out, content)
    return lacking
