"""Commands about runs: create, join, leave and show them.

`join` shows what a run is and asks the user, so a program has to give --yes. `create`, `preview` and `join` start a
node in the background if none runs; it is stopped again if they fail, and after a preview.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.node.base.lines import printable
from shoal.node.client.cli.completion import complete_run
from shoal.node.client.cli.flags import Json, NoTrain, absolute, can_print, this_node
from shoal.node.client.cli.groups import WholeLines
from shoal.node.client.cli.node import AskedAlready, ensure_node
from shoal.node.client.cli.same_manifest import run_instead
from shoal.node.client.waiting import Step, Waiting
from shoal.protocol.base.errors import LocalError

if TYPE_CHECKING:
    from shoal.node.api.answers import Answer, ContinuedRun, Preview, RunLink

app = typer.Typer(
    cls=WholeLines, no_args_is_help=True, rich_markup_mode=None, help="Create, join, leave and look at runs."
)
Run = Annotated[
    str,
    typer.Argument(
        help="The run's id, the first 8 characters of it or more, or its name.", autocompletion=complete_run
    ),
]
RunToJoin = Annotated[
    str,
    typer.Argument(metavar="LINK", help="The run's link, its id, or the first 8 characters of that or more."),
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
    new: Annotated[
        bool, typer.Option("--new", envvar="SHOAL_NEW", help="Do not look for runs of this manifest to join instead.")
    ] = False,
    no_train: NoTrain = False,
    qr: Qr = None,
    as_json: Json = False,
) -> None:
    """Create a run from a manifest, join it, and print its link; from a checkpoint it goes on, as a new lineage.

    If others are in a run of the same manifest, you are asked whether to join that one.
    """
    from shoal.node.api import present
    from shoal.node.base.textfile import shown
    from shoal.node.manifest.manifest import manifest_text, parse_manifest

    text = manifest_text(manifest)
    parse_manifest(text, shown(manifest))  # a mistake is told with its line, and before a node is started
    with ensure_node() as client:
        if not (new or checkpoints) and (link := run_instead(client, text, as_json)):
            _say_joined(_join(link, not no_train, "", yes=False, as_json=False), as_json=False)
            return
        with _told_that_it_may_go_on(), Waiting("creating the run"):
            answer = client.create_run(text, not no_train, [absolute(each) for each in checkpoints or ()])
    if as_json:
        present.show_json(answer)
        return
    for words in answer.get("left_out", ()):
        print(f"data: {printable(words)}", file=sys.stderr)
    print(f"created run {answer['name']}; on another machine:\n")
    _show_link(answer, qr)


@app.command()
def init(
    purpose: Annotated[
        str, typer.Argument(metavar="[PURPOSE]", help="What the run is for; without it, the purposes are listed.")
    ] = "",
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="The file to write; by default PURPOSE.toml.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", envvar="SHOAL_INIT_FORCE", help="Overwrite the file if it is there.")
    ] = False,
) -> None:
    """Write a manifest to begin with, for a purpose, with comments that say what its keys mean."""
    from shoal.node.base.atomic import replace_file
    from shoal.node.base.options import UsageError
    from shoal.node.base.textfile import shown
    from shoal.node.manifest.starting import PURPOSES, manifest_for, next_command

    if not purpose:
        for name, each in PURPOSES.items():
            print(f"{name:8}  {each.about}")
        print(f"\nshoal run init {next(iter(PURPOSES))}")
        return
    if purpose not in PURPOSES:
        raise UsageError(
            f"there is no manifest for '{purpose[:80]}'; the purposes are {', '.join(PURPOSES)}", code="unknown-name"
        )
    path = file or Path(f"{purpose}.toml")
    named = shown(path)
    text = manifest_for(purpose, named)
    try:
        if force:
            replace_file(Path(os.path.realpath(path)), [text.encode()])  # a link stays one
        else:
            with path.open("x", encoding="utf-8") as out:
                out.write(text)
    except FileExistsError as error:
        raise UsageError(
            f"{named} is there already: give another name, or --force to overwrite it", code="already-there"
        ) from error
    print(f"wrote {named}; change in it what you like, and then:\n{next_command(purpose, named)}")


@app.command()
def link(run: Run, qr: Qr = None, as_json: Json = False) -> None:
    """Print the command that joins a run, by its link: whoever has it can join, while any member in it is there."""
    from shoal.node.api import present

    answer = this_node().run_link(run)
    answer.pop("qr", None)  # it is made for the page
    if as_json:
        present.show_json(answer)
    else:
        _show_link(answer, qr)
    if (untold := answer.get("untold")) and not as_json:
        words = "no room for these addresses of this node; whoever can reach no other one needs --bootstrap with one"
        print(f"the link has {words}: {', '.join(map(present.clean, untold))}", file=sys.stderr)


@app.command()
def preview(run: RunToJoin, as_json: Json = False) -> None:
    """Show what joining a run would mean, and join nothing."""
    from shoal.node.api import present

    link = _checked_link(run)
    with ensure_node(keep=False) as client, Waiting("looking for the run"):
        answer = client.preview_run(link)
    present.show_json(answer) if as_json else present.show_preview(answer)


@app.command()
def join(
    run: RunToJoin,
    yes: Annotated[bool, typer.Option("--yes", "-y", envvar="SHOAL_YES", help="Join without being asked.")] = False,
    checkpoint: From = None,
    no_train: NoTrain = False,
    as_json: Json = False,
) -> None:
    """Show what a run is, ask, and join it; without a node, one is started in the background."""
    link = _checked_link(run)
    _check_can_ask(yes, as_json)
    answer = _join(link, not no_train, absolute(checkpoint), yes, as_json)
    _say_joined(answer, as_json)


@app.command()
def leave(run: Run, as_json: Json = False) -> None:
    """Leave a run; the others go on."""
    answer = this_node().leave_run(run)
    _say(answer, f"left run {answer['name']} ({answer['run']})", as_json)
    if (stuck := answer.get("stuck")) and not as_json:
        print(stuck, file=sys.stderr)


@app.command()
def promote(
    run: Run,
    peer: Annotated[str, typer.Argument(help="The member's PeerID, or its beginning or end: `shoal run show` has it.")],
    as_json: Json = False,
) -> None:
    """Give a vote to a member that does not train; whose contributions count gets one by itself.

    The order of the run's author or of a steward is enough; that of voters counts once a quorum of them has given it.
    """
    answer = this_node().promote_member(run, peer)
    _say(answer, f"ordered; `shoal run show {answer['name']}` says when it votes", as_json)


@app.command(name="continue")
def go_on(
    run: Run,
    yes: Annotated[bool, typer.Option("--yes", "-y", envvar="SHOAL_YES", help="Go on without being asked.")] = False,
    as_json: Json = False,
) -> None:
    """Go on with the members that are here, when too many voters are lost for good to decide anything."""
    _check_can_ask(yes, as_json, "go on", "`shoal status`")
    client = this_node()
    found = client.continue_run(run, False)
    if not as_json:
        _show_who_goes_on(found)
    if not yes and not _confirmed("Go on without them?"):
        raise LocalError("nothing is changed", code="not-confirmed")
    answer = client.continue_run(run, True)
    _say(answer, f"{answer['name']} goes on within seconds; `shoal status` says how", as_json)


@app.command()
def ls(as_json: Json = False) -> None:
    """List the runs that this node is in."""
    from shoal.node.api import present
    from shoal.node.client.cli.status_lines import show_runs

    answer = this_node().runs()
    present.show_json(answer) if as_json else show_runs(answer)


@app.command()
def discover(as_json: Json = False) -> None:
    """List public runs that anybody may join, as they announce themselves."""
    from shoal.node.api import present

    answer = this_node().public_runs()
    present.show_json(answer) if as_json else present.show_public_runs(answer)


@app.command()
def show(run: Run, as_json: Json = False) -> None:
    """Show a run: its manifest, its members, its last rounds."""
    from shoal.node.api import present

    answer = this_node().run_details(run)
    present.show_json(answer) if as_json else present.show_run(answer)


# -- joining ------------------------------------------------------------------------------------------------


def _say_joined(answer: RunLink, as_json: bool) -> None:
    _say(answer, f"joined run {answer['name']} ({answer['run'][:8]}); `shoal status` says how it goes", as_json)


def _join(link: str, train: bool, checkpoint: str, yes: bool, as_json: bool) -> RunLink:
    """Show a run, ask, and join it; returns the node's answer. LocalError if it is not joined."""
    from shoal.node.api.present import show_preview

    with ensure_node() as client:
        with Waiting("looking for the run"):
            preview = client.preview_run(link)
        if not as_json:
            show_preview(preview if train else _without_training(preview))
            print()
        if train and preview["data"]["problem"]:
            raise LocalError(
                f"this machine cannot train on the run's data: {preview['data']['problem']}; "
                "--no-train joins to keep the state and vote",
                code=preview["data"]["code"],
            )
        if train and preview["memory"].get("problem"):
            raise LocalError(f"not joined: {preview['memory']['problem']}", code="no-room")
        if not yes and not _confirmed():
            raise LocalError("not joined", code="not-confirmed")
        with _told_that_it_may_go_on(), Waiting("joining the run", _download):
            return client.join_run(_whole(link, preview), train, checkpoint)


def _without_training(preview: Preview) -> Preview:
    """What joining means for a node that only keeps the state and votes."""
    from shoal.node.run.preview import memory_words

    memory = preview["memory"]
    rows = [
        [label, memory_words(memory, train=False) if label == "memory" else said] for label, said in preview["words"]
    ]
    return {**preview, "words": rows, "memory": {**memory, "problem": ""}}


def _download() -> Step:
    """How much of the run's data has come, while it is downloaded."""
    status = this_node().status()
    if (download := status.get("download")) is None:
        return Step()
    return Step(str(status["obstacle"] or ""), download["here"] / max(1, download["whole"]))


@contextmanager
def _told_that_it_may_go_on() -> Iterator[None]:
    """While the node enters a run: Ctrl-C ends the command, but does not take back what the node was asked for.

    Nor does it stop a node that was started for that.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        words = (
            "interrupted, but the node was asked already: while it runs, `shoal run ls` shows whether it is in the run"
        )
        print(f"\n{words}, and `shoal run leave` ends that", file=sys.stderr)
        raise AskedAlready from error


def _checked_link(text: str) -> str:
    """`text` without spaces around it; UsageError if it is neither a link nor an id."""
    from shoal.node.base.options import UsageError, names_a_run

    text = text.strip()
    if not names_a_run(text):
        raise UsageError(
            f"'{text[:80]}' names no run: give its link (one word, as `shoal run link` prints it), or its id (64 hex "
            "characters, or the first 8 or more)",
            code="not-a-link",
        )
    return text


def _whole(link: str, preview: Preview) -> str:
    """The run by its link or whole id: its first characters could be another run's a moment after the preview."""
    from shoal.node.base.options import is_run_id

    run: str = preview["run"]
    return run if is_run_id(link) and not is_run_id(link, whole=True) else link


def _show_who_goes_on(found: ContinuedRun) -> None:
    from shoal.node.base.kept import names

    without = f", and without {names(found['away'])}" if found["away"] else ""
    print(f"{found['name']} can decide nothing: {found['why']}.")
    print(f"It would go on after round {found['round']} with members: {len(found['here'])}{without}.")
    print("Who was only away joins by itself when it is back.")
    if found["keeps_replicas"]:
        print("What others have learned since their last exchanges is in their replicas only, which they keep.\n")
        return
    print("What others have trained or decided after that round is not in it, and lost if they are lost for good.")
    print("If they live and go on too, the part that has done less joins the other when they meet and drops its own.\n")


def _check_can_ask(yes: bool, as_json: bool, what: str = "join", instead: str = "`shoal run preview`") -> None:
    """UsageError if the user must be asked and cannot be."""
    from shoal.node.api.present import is_terminal
    from shoal.node.base.options import UsageError

    if yes:
        return
    if as_json:
        raise UsageError(
            f"--json asks no questions: say --yes to {what}, or look first with {instead}", code="nobody-asked"
        )
    if not (sys.stdin.isatty() and is_terminal()):
        raise UsageError(
            f"nobody is here to say yes: say --yes to {what}, or look first with {instead}", code="nobody-asked"
        )


def _confirmed(question: str = "Join?") -> bool:
    print(f"{question} [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


# -- words --------------------------------------------------------------------------------------------------


def _show_link(answer: RunLink, qr: bool | None) -> None:
    """Print the command for another machine."""
    from shoal.node.api.status import join_command

    print(join_command(answer))
    show_qr(answer["link"], qr)


def _say(answer: Answer, sentence: str, as_json: bool) -> None:
    """Print what was done: the node's answer for programs, `sentence` for people."""
    from shoal.node.api import present

    present.show_json(answer) if as_json else print(sentence)


# -- a link as a QR code ------------------------------------------------------------------------------------


HALVES = {"00": "█", "10": "▄", "01": "▀", "11": " "}  # two modules, one above the other; a full block is light
LIGHT_ON_DARK, PLAIN = "\x1b[97;40m", "\x1b[0m"  # scanners want dark modules on light ground, whatever the terminal's


def show_qr(text: str, wanted: bool | None) -> None:
    """Print the link `text` as a QR code if `wanted`; with None if stdout is a terminal that is wide enough for it.

    Nothing is printed if stdout cannot encode block characters.
    """
    terminal = sys.stdout.isatty()
    if wanted is False or (wanted is None and not terminal) or not can_print("█▀▄"):
        return
    lines = qr_code(text)
    if wanted is None and len(lines[0]) > shutil.get_terminal_size().columns:
        return
    coloured = terminal and not os.environ.get("NO_COLOR")
    print()
    for line in lines:
        print(f"{LIGHT_ON_DARK}{line}{PLAIN}" if coloured else line)


def qr_code(text: str) -> list[str]:
    """The lines of a link's code, two modules in one character."""
    from shoal.node.base.qr import qr_rows

    rows = qr_rows(text)
    rows += ["0" * len(rows)] * (len(rows) % 2)  # light, as the border
    pairs = zip(rows[::2], rows[1::2], strict=True)
    return ["".join(HALVES[a + b] for a, b in zip(upper, lower, strict=True)) for upper, lower in pairs]
