"""The command tree. Each group of commands has its own file beside this one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shoal.node.base.exits import HELP
from shoal.node.client.cli import (
    bugreport,
    ckpt,
    codes,
    config,
    diagnostics,
    experts,
    guest,
    node,
    read,
    run,
    serve,
    up,
)
from shoal.node.client.cli.groups import WholeLines

WIDEST = 1_000  # columns: help is as wide as the terminal, where click would stop at 80


class WithExitCodes(WholeLines):
    """Lists the exit codes at the end of its help."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the end of the help; the types are Any, as typer may bring a click of its own."""
        super().format_epilog(ctx, formatter)
        with formatter.section("Exit codes"):
            formatter.write_dl([(f"{code:3}", text) for code, text in HELP.items()])


app = typer.Typer(
    cls=WithExitCodes,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": WIDEST},
    help="Train one model together with other people's machines, without a server.",
    epilog="SHOAL_HOME chooses the node's folder; each flag has a variable, named in its help.",
)


def _show_version(context: typer.Context, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        read.version()
        raise typer.Exit


@app.callback()
def shoal(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options before any command; `--version` has no variable, which would turn every command into it."""


app.command()(up.up)
app.command()(up.report)
app.add_typer(node.app, name="node")
app.command()(guest.pause)
app.command()(guest.resume)
app.command()(guest.drain)
app.command()(guest.restart)
app.add_typer(config.app, name="config")
app.add_typer(run.app, name="run")
app.add_typer(ckpt.app, name="ckpt")
app.command()(serve.generate)
app.command()(serve.serve)
app.add_typer(experts.app, name="experts")
app.command()(read.status)
app.command()(read.peers)
app.command()(diagnostics.netcheck)
app.command()(diagnostics.doctor)
app.command()(read.logs)
app.command()(bugreport.bugreport)
app.command()(codes.explain)
app.command()(read.version)
