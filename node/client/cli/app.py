"""The command tree. Each group of commands has its own file beside this one."""

from __future__ import annotations

import typer

from shoal.node.base.exits import HELP
from shoal.node.client.cli import bugreport, ckpt, diagnostics, experts, node, read, run, serve, up

CODES = "\n".join(f"  {code:3}  {text}" for code, text in HELP.items())
NO_REWRAP = "\b"  # a paragraph that begins with it keeps its lines

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Train one model together with strangers' machines, without a server.",
    epilog="SHOAL_HOME chooses the node's folder; each flag has a variable, named in its help.\n\n"
    f"{NO_REWRAP}\nExit codes:\n{CODES}",
)
app.command()(up.up)
app.command()(up.report)
app.add_typer(node.app, name="node")
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
app.command()(read.version)
