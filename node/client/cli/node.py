"""Commands that start and stop the node of this SHOAL_HOME, and `ensure_node`, by which other commands start one."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.node.base import options
from shoal.node.base.lines import printable
from shoal.node.base.step_options import TrainerOptions
from shoal.node.client.cli.flags import NoTrain, absolute, this_node

if TYPE_CHECKING:
    from shoal.node.api.client import Client

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Start and stop this machine's node.")


@app.command()
def start(
    context: typer.Context,
    foreground: Annotated[
        bool, typer.Option("--foreground/--background", envvar="SHOAL_FOREGROUND", help="Stay in this terminal.")
    ] = False,
    port: Annotated[
        int, typer.Option(envvar="SHOAL_PORT", help="For other peers (TCP); this one and the next. 0: any.")
    ] = options.P2P_PORT,
    listen_host: Annotated[
        str, typer.Option(envvar="SHOAL_LISTEN_HOST", help="The address on which other peers reach us.")
    ] = options.LISTEN_HOST,
    admin_port: Annotated[
        int, typer.Option(envvar="SHOAL_ADMIN_PORT", help="For the admin API. 0: any.")
    ] = options.ADMIN_PORT,
    admin_host: Annotated[
        str, typer.Option(envvar="SHOAL_ADMIN_HOST", help="The address of the admin API; keep it private.")
    ] = options.ADMIN_HOST,
    bootstrap: Annotated[
        list[str] | None,
        typer.Option(
            envvar="SHOAL_BOOTSTRAP",
            metavar="MULTIADDR",
            help="A node to find the others by: /ip4/192.0.2.7/tcp/4101 or /dns4/NAME/tcp/4101, with /p2p/ID if no "
            "other may answer there; may be repeated.",
        ),
    ] = None,
    no_mdns: Annotated[
        bool,
        typer.Option(
            "--no-mdns", envvar="SHOAL_NO_MDNS", help="Neither look for nodes on the local network nor be found there."
        ),
    ] = False,
    no_port_mapping: Annotated[
        bool,
        typer.Option(
            "--no-port-mapping",
            envvar="SHOAL_NO_PORT_MAPPING",
            help="Do not ask the home router, by NAT-PMP or UPnP, to let others in.",
        ),
    ] = False,
    threads: Annotated[
        int | None,
        typer.Option(envvar="SHOAL_THREADS", help="Threads of a training process.", show_default="1 on up to 4 cores"),
    ] = None,
    device: Annotated[
        str, typer.Option(envvar="SHOAL_DEVICE", help="To train on: cpu, mps, cuda, cuda:1; auto: the fastest here.")
    ] = options.AUTO,
    micro_batch: Annotated[
        int,
        typer.Option(envvar="SHOAL_MICRO_BATCH", help="Sequences to train on at once, at most. 0: as many as fit."),
    ] = 0,
    recompute: Annotated[
        bool,
        typer.Option(
            "--recompute",
            envvar="SHOAL_RECOMPUTE",
            help="Make activations again instead of keeping them: slower, with less memory.",
        ),
    ] = False,
    compiled: Annotated[
        bool,
        typer.Option("--compile", envvar="SHOAL_COMPILE", help="Compile the model's layers, if there is a compiler."),
    ] = False,
    weights: Annotated[
        list[Path] | None,
        typer.Option(
            envvar="SHOAL_WEIGHTS",
            metavar="FOLDER",
            help="Base weights for runs of LoRA adapters: a folder of safetensors; may be repeated.",
        ),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            envvar="SHOAL_DATA",
            metavar="PATH",
            help="Text for runs about text of one's own: a file or folder; may be repeated.",
        ),
    ] = None,
    data_limit: Annotated[
        float,
        typer.Option(
            envvar="SHOAL_DATA_LIMIT",
            metavar="GIB",
            help="How much of a run's text to download at most, if it is not here. 0: nothing.",
        ),
    ] = options.DATA_LIMIT,
    no_share_data: Annotated[
        bool,
        typer.Option("--no-share-data", envvar="SHOAL_NO_SHARE_DATA", help="Give no member the text of a run."),
    ] = False,
    max_up: Annotated[
        str | None,
        typer.Option(
            envvar="SHOAL_MAX_UP", metavar="RATE", help="Send no faster than this, all in all: 20Mbit or 2.5MB/s."
        ),
    ] = None,
    max_down: Annotated[
        str | None,
        typer.Option(envvar="SHOAL_MAX_DOWN", metavar="RATE", help="Receive no faster than this, all in all."),
    ] = None,
    max_per_day: Annotated[
        str | None,
        typer.Option(
            envvar="SHOAL_MAX_PER_DAY",
            metavar="VOLUME",
            help="Send and receive no more than this a day (UTC), as 20GB: it pauses its runs until the next.",
        ),
    ] = None,
    checkpoint_every: Annotated[
        int, typer.Option(envvar="SHOAL_CHECKPOINT_EVERY", help="Rounds between two checkpoints. 0: none.")
    ] = options.CHECKPOINT_EVERY,
    checkpoint_keep: Annotated[
        int, typer.Option(envvar="SHOAL_CHECKPOINT_KEEP", help="Checkpoints to keep of each run.")
    ] = options.CHECKPOINT_KEEP,
    create: Annotated[
        Path | None,
        typer.Option(
            envvar="SHOAL_CREATE", metavar="MANIFEST", help="Be in this manifest's run; found it if we are not in it."
        ),
    ] = None,
    join: Annotated[
        list[str] | None,
        typer.Option(
            envvar="SHOAL_JOIN",
            metavar="RUN",
            help="Be in this run (its link, id or manifest): join it as soon as a peer knows it; may be repeated.",
        ),
    ] = None,
    no_train: NoTrain = False,
) -> None:
    """Start the node, in the background unless told otherwise."""
    from shoal.node.api import present
    from shoal.node.client import launch

    settings = node_settings(context.params)
    if foreground:
        launch.run_here(settings)
    else:
        print(printable(launch.start_in_background(settings)))
        print(f"page: {this_node().page(present.is_terminal())}")


def node_settings(given: Mapping[str, Any]) -> options.NodeSettings:
    """The node's settings from the parameters of `start`."""
    from shoal.node.base.home import find_home
    from shoal.node.base.quantities import parse_rate, parse_volume

    weights = tuple(absolute(path) for path in given["weights"])
    return options.NodeSettings(
        home=find_home().root,
        port=given["port"],
        listen_host=given["listen_host"],
        admin_host=given["admin_host"],
        admin_port=given["admin_port"],
        bootstrap=tuple(given["bootstrap"]),
        mdns=not given["no_mdns"],
        port_mapping=not given["no_port_mapping"],
        threads=options.default_threads() if given["threads"] is None else given["threads"],
        device=given["device"],
        trainer=TrainerOptions(given["micro_batch"], given["recompute"], given["compiled"], weights),
        data=tuple(Path(absolute(path)) for path in given["data"]),
        data_limit=given["data_limit"],
        share_data=not given["no_share_data"],
        max_up=parse_rate("--max-up", given["max_up"]),
        max_down=parse_rate("--max-down", given["max_down"]),
        max_per_day=parse_volume("--max-per-day", given["max_per_day"]),
        checkpoint_every=given["checkpoint_every"],
        checkpoint_keep=given["checkpoint_keep"],
        create=Path(absolute(given["create"])) if given["create"] else None,
        join=tuple(run if options.names_a_run(run) else absolute(run) for run in given["join"]),
        train=not given["no_train"],
    )


def settings_of_environment() -> options.NodeSettings:
    """The settings of `shoal node start` without flags, from environment variables. UsageError if one is invalid."""
    command: Any = typer.main.get_command(app)
    try:
        with command.commands["start"].make_context("shoal node start", []) as context:
            return node_settings(context.params)
    except typer.BadParameter as error:
        raise options.UsageError(error.format_message()) from error


@contextmanager
def ensure_node(keep: bool = True) -> Iterator[Client]:
    """A client of this home's node, which is started if none runs.

    A node that was started here is stopped again after an error, or if `keep` is false.
    """
    from shoal.node.base.home import find_home
    from shoal.node.client import launch

    home = find_home()
    if home.daemon_pid() is not None:
        yield this_node()
        return
    launch.start_in_background(settings_of_environment())
    client = this_node()
    print(f"started a node in the background (pid {client.pid}); its log is {home.daemon_log}\n", file=sys.stderr)
    try:
        yield client
    except BaseException:  # also Ctrl-C at a question: a node without a run was not asked for
        launch.stop(home, lambda _: None)
        raise
    if not keep:
        launch.stop(home, lambda _: None)


@app.command()
def stop(
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            envvar="SHOAL_STOP_FORCE",
            help="Kill it if it has not ended in some seconds, even if it is still saving its runs.",
        ),
    ] = False,
) -> None:
    """Stop the node; its runs go on with the others, or when it is back. One that hangs is killed in the end."""
    from shoal.node.base.home import find_home
    from shoal.node.client import launch

    print(launch.stop(find_home(), lambda line: print(line, file=sys.stderr, flush=True), force))
