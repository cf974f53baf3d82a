"""Commands about a family of experts that this node is in: show its parts, and fetch, serve or merge its experts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.node.client.cli.completion import complete_family
from shoal.node.client.cli.flags import Json, this_node
from shoal.node.client.cli.groups import WholeLines
from shoal.node.client.waiting import Waiting

if TYPE_CHECKING:
    from shoal.node.api.answers import ExpertRow

COLUMNS = ("part", "peer", "steps", "of", "loss", "published", "holders", "here")
Family = Annotated[
    str,
    typer.Argument(
        metavar="FAMILY",
        help="The family's id, the first 8 characters of it or more, or its name.",
        autocompletion=complete_family,
    ),
]


class ShowByDefault(WholeLines):
    """`shoal experts FAMILY` is `shoal experts show FAMILY`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is meant; `ctx` is Any, as typer may bring a click of its own."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["show", *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=ShowByDefault,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show a family of isolated experts (shoal experts FAMILY), or fetch what it has published.",
)


@app.command()
def show(family: Family, as_json: Json = False) -> None:
    """List the parts: who trains them, how far, and what was published."""
    from shoal.node.api import present

    answer = this_node().experts(family)
    present.show_json(answer) if as_json else present.show_table(COLUMNS, [_row(each) for each in answer])


@app.command()
def fetch(
    family: Family,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder; it is made if need be.")],
    as_json: Json = False,
) -> None:
    """Download all published experts into a folder, with an ensemble.json; each is checked by hash and signature."""
    from shoal.node.api import present

    with Waiting("fetching the experts"):
        answer = this_node().fetch_experts(family, str(folder.absolute()))
    if as_json:
        present.show_json(answer)
        return
    names = ", ".join(f"{each['name']} ({each['steps']} steps)" for each in answer["experts"])
    print(f"wrote {answer['folder']}: {names}")
    if problem := answer["tokens"].get("problem"):
        print(f"without a tokenizer: {problem}")
    if answer["missing"]:
        print(f"nothing has been published yet of {', '.join(answer['missing'])}")


@app.command()
def answer(
    family: Family,
    parts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PART...]", help="Of these; without any, of all whose files are here."),
    ] = None,
    slots: Annotated[
        int, typer.Option(envvar="SHOAL_ANSWER_SLOTS", min=1, max=4096, help="Texts that an expert holds at once.")
    ] = 64,
    each: Annotated[
        int, typer.Option(envvar="SHOAL_ANSWER_EACH", min=1, max=4096, help="Of these, those of one peer.")
    ] = 32,
    device: Annotated[
        str, typer.Option(envvar="SHOAL_ANSWER_DEVICE", help="To compute on: auto, cpu, mps, cuda, cuda:1.")
    ] = "auto",
    threads: Annotated[
        int,
        typer.Option(
            envvar="SHOAL_ANSWER_THREADS", min=0, max=1024, help="Of the CPU; 0: one, or half the cores of many."
        ),
    ] = 0,
) -> None:
    """Answer other peers who serve the family, with the experts whose files this node has, until Ctrl-C."""
    from shoal.node.base.home import find_home
    from shoal.node.inference.remote.answering.process import answer_until_told

    answer_until_told(find_home(), family, tuple(parts or ()), slots, each, device, threads)


@app.command()
def merge(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that `shoal experts fetch` has written.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder for the checkpoint.")],
    mix: Annotated[
        str, typer.Option(envvar="SHOAL_MERGE_MIX", metavar="average|pcb", help="How they are merged.")
    ] = "average",
    prior: Annotated[
        str, typer.Option(envvar="SHOAL_MERGE_PRIOR", metavar="FILE", help="A text by which the experts are weighed.")
    ] = "",
    base: Annotated[
        str, typer.Option(envvar="SHOAL_MERGE_BASE", metavar="FILE|SEED", help="For pcb: what they have begun with.")
    ] = "",
) -> None:
    """Merge experts into a checkpoint, for `shoal run create --from` to branch from, or to serve."""
    with Waiting("merging the experts"):
        from shoal.node.inference.ensemble.folder import write_merge
        from shoal.node.inference.served import ServeOptions

        written = write_merge(folder, out, ServeOptions(device="cpu", mix=mix, prior=prior, base=base))
    print(f"wrote {written}")


def _row(each: ExpertRow) -> list[Any]:
    from shoal.node.api import present

    published = each["published"] or {}
    peer = each["peer"][-6:] if each["peer"] else "finished" if each["finished"] else None
    figures = [each["steps"], each["of"], present.number(each["loss"], 4)]
    return [each["part"], peer, *figures, published.get("steps"), published.get("holders"), published.get("here")]
