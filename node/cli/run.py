"""Commands about runs: found one, join one, leave one, look at one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.node.cli.flags import Json, NoTrain

MAX_MANIFEST = 64 << 10

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Create, join, leave and look at runs.")
Run = Annotated[str, typer.Argument(help="The run's id, the first 8 characters of it or more, or its name.")]


From = Annotated[
    Path | None,
    typer.Option(
        "--from", envvar="SHOAL_FROM", metavar="CHECKPOINT", help="A checkpoint's folder, that the run goes on from."
    ),
]


@app.command()
def create(
    manifest: Annotated[Path, typer.Argument(help="The run's manifest, a TOML file.")],
    checkpoint: From = None,
    no_train: NoTrain = False,
    as_json: Json = False,
) -> None:
    """Create a run from a manifest, and join it; from a checkpoint it goes on, as a new lineage."""
    from shoal.node.client import Client
    from shoal.node.home import find_home

    text = _read_manifest(manifest)
    answer = Client(find_home()).create_run(text, not no_train, _absolute(checkpoint))
    _say(answer, f"created run {answer['name']}; others join it with `shoal run join {answer['run']}`", as_json)


@app.command()
def join(
    run: Annotated[str, typer.Argument(help="The run's id, or the first 8 characters of it or more.")],
    checkpoint: From = None,
    no_train: NoTrain = False,
    as_json: Json = False,
) -> None:
    """Join a run that a peer of this node is in."""
    from shoal.node.client import Client
    from shoal.node.home import find_home
    from shoal.node.options import UsageError, is_run_id

    if not is_run_id(run):
        raise UsageError(f"'{run}' is not a run id: give its 64 hex characters, or the first 8 or more of them")
    answer = Client(find_home()).join_run(run.lower(), not no_train, _absolute(checkpoint))
    _say(answer, f"joined run {answer['name']} ({answer['run']})", as_json)


@app.command()
def leave(run: Run, as_json: Json = False) -> None:
    """Leave a run; the others go on."""
    from shoal.node.client import Client
    from shoal.node.home import find_home

    answer = Client(find_home()).leave_run(run)
    _say(answer, f"left run {answer['name']} ({answer['run']})", as_json)


@app.command()
def ls(as_json: Json = False) -> None:
    """List the runs that this node is in."""
    from shoal.node import present
    from shoal.node.client import Client
    from shoal.node.home import find_home

    answer = Client(find_home()).runs()
    present.show_json(answer) if as_json else present.show_runs(answer)


@app.command()
def show(run: Run, as_json: Json = False) -> None:
    """Show a run: its manifest, its members, its last rounds."""
    from shoal.node import present
    from shoal.node.client import Client
    from shoal.node.home import find_home

    answer = Client(find_home()).run_details(run)
    present.show_json(answer) if as_json else present.show_run(answer)


def _say(answer: dict[str, Any], sentence: str, as_json: bool) -> None:
    """What was done: the node's answer, {run, name}, for programs; a sentence for people."""
    from shoal.node import present

    present.show_json(answer) if as_json else print(sentence)


def _absolute(path: Path | None) -> str:
    """As the node, which may be in another folder, understands it."""
    return str(path.absolute()) if path is not None else ""


def _read_manifest(path: Path) -> str:
    """The file's text; what is wrong inside it is the node's to say."""
    from shoal.protocol.errors import LocalError

    try:
        with path.open("rb") as file:
            content = file.read(MAX_MANIFEST + 1)
        if len(content) > MAX_MANIFEST:
            raise LocalError(f"the manifest {path} is larger than {MAX_MANIFEST >> 10} KiB")
        return content.decode()
    except OSError as error:
        raise LocalError(f"cannot read the manifest {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise LocalError(f"the manifest {path} is not UTF-8 text") from error
