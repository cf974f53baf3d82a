"""Commands about runs: found one, join one from its link, leave one, look at one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.node.cli.flags import Json, NoTrain
from shoal.node.text import printable

MAX_MANIFEST = 64 << 10

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Create, join, leave and look at runs.")
Run = Annotated[str, typer.Argument(help="The run's id, the first 8 characters of it or more, or its name.")]
Wanted = Annotated[
    str,
    typer.Argument(metavar="LINK", help="The run's link in quotes, its id, or the first 8 characters of that or more."),
]
Qr = Annotated[
    bool | None,
    typer.Option("--qr/--no-qr", envvar="SHOAL_QR", help="The link as a QR code; by default in a terminal."),
]

From = Annotated[
    Path | None,
    typer.Option(
        "--from", envvar="SHOAL_FROM", metavar="CHECKPOINT", help="A checkpoint's folder, that the run goes on from."
    ),
]


@app.command()
def create(
    manifest: Annotated[Path, typer.Argument(help="The run's manifest, a TOML file.")],
    checkpoints: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            envvar="SHOAL_FROM",
            metavar="CHECKPOINT",
            help="A checkpoint's folder, that the run goes on from; of a family, several: one for each model.",
        ),
    ] = None,
    no_train: NoTrain = False,
    qr: Qr = None,
    as_json: Json = False,
) -> None:
    """Create a run from a manifest, join it, and print its link; from a checkpoint it goes on, as a new lineage."""
    from shoal.node.cli import present
    from shoal.node.cli.joining import node_at_hand

    text = _read_manifest(manifest)
    with node_at_hand() as client:
        answer = client.create_run(text, not no_train, [_absolute(each) for each in checkpoints or ()])
    if as_json:
        present.show_json(answer)
        return
    for words in answer.get("left_out", ()):
        print(f"data: {printable(words)}", file=sys.stderr)
    print(f"created run {answer['name']}; on another machine:\n")
    _show_link(answer, qr)


@app.command()
def link(run: Run, qr: Qr = None, as_json: Json = False) -> None:
    """Print a run's link: whoever has it can join, while any of the members in it is there."""
    from shoal.node.cli import present
    from shoal.node.client import Client
    from shoal.node.home import find_home

    answer = Client(find_home()).run_link(run)
    if as_json:
        present.show_json(answer)
    elif present.is_terminal():
        _show_link(answer, qr)
    else:
        print(answer["link"])
        _draw(answer, qr)
    if (untold := answer.get("untold")) and not as_json:
        words = "no room for these addresses of this node; whoever can reach no other one needs --bootstrap with one"
        print(f"the link has {words}: {', '.join(map(present.clean, untold))}", file=sys.stderr)


@app.command()
def preview(run: Wanted, as_json: Json = False) -> None:
    """Show what joining a run would mean, and join nothing."""
    from shoal.node.cli import joining, present
    from shoal.node.cli.preview import show_preview

    answer = joining.look(run)
    present.show_json(answer) if as_json else show_preview(answer)


@app.command()
def join(
    run: Wanted,
    yes: Annotated[bool, typer.Option("--yes", "-y", envvar="SHOAL_YES", help="Join without being asked.")] = False,
    checkpoint: From = None,
    no_train: NoTrain = False,
    as_json: Json = False,
) -> None:
    """Show what a run is, ask, and join it; without a node, one is started in the background."""
    from shoal.node.cli import joining

    answer = joining.join(run, not no_train, _absolute(checkpoint), yes, as_json)
    _say(answer, f"joined run {answer['name']} ({answer['run'][:8]}); `shoal status` says how it goes", as_json)


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
    from shoal.node.cli import present
    from shoal.node.client import Client
    from shoal.node.home import find_home

    answer = Client(find_home()).runs()
    present.show_json(answer) if as_json else present.show_runs(answer)


@app.command()
def discover(as_json: Json = False) -> None:
    """List public runs that anybody may join, as they announce themselves."""
    from shoal.node.cli import present
    from shoal.node.client import Client
    from shoal.node.home import find_home

    answer = Client(find_home()).public_runs()
    present.show_json(answer) if as_json else present.show_public_runs(answer)


@app.command()
def show(run: Run, as_json: Json = False) -> None:
    """Show a run: its manifest, its members, its last rounds."""
    from shoal.node.cli import present
    from shoal.node.client import Client
    from shoal.node.home import find_home

    answer = Client(find_home()).run_details(run)
    present.show_json(answer) if as_json else present.show_run(answer)


def _show_link(answer: dict[str, Any], qr: bool | None) -> None:
    """As it is typed on another machine: in quotes, because a shell would take & and ? for its own."""
    print(f"shoal run join '{answer['link']}'")
    _draw(answer, qr)


def _draw(answer: dict[str, Any], qr: bool | None) -> None:
    from shoal.node.cli.qr import show

    show(answer["link"], qr)


def _say(answer: dict[str, Any], sentence: str, as_json: bool) -> None:
    """What was done: the node's answer for programs; a sentence for people."""
    from shoal.node.cli import present

    present.show_json(answer) if as_json else print(sentence)


def _absolute(path: Path | None) -> str:
    """As the node, which may be in another folder, understands it."""
    return str(path.absolute()) if path is not None else ""


def _read_manifest(path: Path) -> str:
    """The file's text; what is wrong inside it is the node's to say."""
    from shoal.node.spec.toml import with_config
    from shoal.node.textfile import read_text

    return with_config(read_text(path, "the manifest", MAX_MANIFEST), path.parent)
