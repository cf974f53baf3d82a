"""Commands that start and stop the node of this SHOAL_HOME."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from shoal.node import options
from shoal.node.cli.flags import NoTrain
from shoal.node.text import printable
from shoal.node.trainer.options import TrainerOptions

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Start and stop this machine's node.")


@app.command()
def start(
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
    from shoal.node import launch
    from shoal.node.cli import present
    from shoal.node.client import Client
    from shoal.node.home import find_home
    from shoal.node.quantities import parse_rate, parse_volume

    settings = options.NodeSettings(
        home=find_home().root,
        port=port,
        listen_host=listen_host,
        admin_host=admin_host,
        admin_port=admin_port,
        bootstrap=tuple(bootstrap or ()),
        mdns=not no_mdns,
        port_mapping=not no_port_mapping,
        threads=options.default_threads() if threads is None else threads,
        device=device,
        trainer=TrainerOptions(micro_batch, recompute, compiled, tuple(str(path.absolute()) for path in weights or ())),
        data=tuple(path.absolute() for path in data or ()),
        data_limit=data_limit,
        share_data=not no_share_data,
        max_up=parse_rate("--max-up", max_up),
        max_down=parse_rate("--max-down", max_down),
        max_per_day=parse_volume("--max-per-day", max_per_day),
        checkpoint_every=checkpoint_every,
        checkpoint_keep=checkpoint_keep,
        create=create.absolute() if create else None,
        join=tuple(run if options.names_a_run(run) else str(Path(run).absolute()) for run in join or ()),
        train=not no_train,
    )
    if foreground:
        launch.run_here(settings)
    else:
        print(printable(launch.start_in_background(settings)))
        print(f"page: {Client(find_home()).page(present.is_terminal())}")


@app.command()
def stop() -> None:
    """Stop the node; its runs go on with the others, or when it is back."""
    from shoal.node import launch
    from shoal.node.home import find_home

    print(launch.stop(find_home(), lambda line: print(line, file=sys.stderr, flush=True)))
