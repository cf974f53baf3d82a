"""`shoal up`, a local swarm of real nodes with one death and one newcomer, to see everything work, and its report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from shoal.node.base.lines import printable
from shoal.node.base.options import AUTO, UP_CHECKPOINT_EVERY
from shoal.node.client.cli.flags import Json, refuse

KILL_AT = 4
JOIN_AT = 6
SETTLED = ("peers", "kill_at", "join_at", "manifest", "seed")  # not with --resume: the earlier play has decided them


def up(
    context: typer.Context,
    peers: Annotated[int, typer.Option(envvar="SHOAL_UP_PEERS", help="Nodes to start.")] = 4,
    rounds: Annotated[int, typer.Option(envvar="SHOAL_UP_ROUNDS", help="Rounds to train.")] = 12,
    kill_at: Annotated[
        str | None,
        typer.Option(
            envvar="SHOAL_UP_KILL_AT",
            metavar="ROUND|none",
            show_default=str(KILL_AT),
            help="Kill one peer in the middle of this round's all-reduce.",
        ),
    ] = None,
    join_at: Annotated[
        str | None,
        typer.Option(
            envvar="SHOAL_UP_JOIN_AT",
            metavar="ROUND|none",
            show_default=str(JOIN_AT),
            help="Let a fresh peer join so early that it takes part in this round; in the next one if it takes long.",
        ),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            envvar="SHOAL_UP_DATA",
            metavar="PATH",
            help="Text to train on: a file or folder; may be repeated.",
        ),
    ] = None,
    weights: Annotated[
        list[Path] | None,
        typer.Option(
            envvar="SHOAL_UP_WEIGHTS",
            metavar="FOLDER",
            help="Base weights for a run of LoRA adapters: a folder of safetensors; may be repeated.",
        ),
    ] = None,
    manifest: Annotated[
        Path | None,
        typer.Option(envvar="SHOAL_UP_MANIFEST", help="A run manifest; without it, the built-in one."),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(
            envvar="SHOAL_UP_DEVICE",
            help="To train on: auto, cpu, mps, cuda, cuda:1; if repeated, the peers take them in turn.",
        ),
    ] = None,
    baseline: Annotated[
        bool,
        typer.Option("--baseline", envvar="SHOAL_UP_BASELINE", help="Also train alone and joined, to compare."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(envvar="SHOAL_UP_OUT", help="A folder for logs, metrics and states.")
    ] = None,
    seed: Annotated[int, typer.Option(envvar="SHOAL_UP_SEED", help="Of model, data and keys.")] = 0,
    checkpoint_every: Annotated[
        int, typer.Option(envvar="SHOAL_UP_CHECKPOINT_EVERY", help="Rounds between two checkpoints. 0: none.")
    ] = UP_CHECKPOINT_EVERY,
    resume: Annotated[
        Path | None,
        typer.Option(
            envvar="SHOAL_UP_RESUME",
            metavar="DIR",
            help="Go on from the checkpoints in an earlier --out, with its peers and manifest, up to --rounds.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a swarm on this machine: train, lose a peer, gain a peer, agree to the bit."""
    from shoal.node.base.options import UpOptions

    if resume is not None:
        refuse(context, SETTLED, "with --resume: the peers and the manifest are those of the earlier play")
    options = UpOptions(
        peers=peers,
        rounds=rounds,
        kill_at=None if resume else _round("--kill-at", kill_at, KILL_AT, fits=rounds >= KILL_AT and peers >= 3),
        join_at=None if resume else _round("--join-at", join_at, JOIN_AT, fits=rounds > JOIN_AT),
        data=tuple(data or ()),
        manifest=manifest,
        baseline=baseline,
        out=out,
        seed=seed,
        json=as_json,
        resume=resume.absolute() if resume is not None else None,
        checkpoint_every=checkpoint_every,
        devices=tuple(device or [AUTO]),
        weights=tuple(weights or ()),
    )
    from shoal.node.client.up.orchestrate import main

    raise typer.Exit(main(options))


def _round(flag: str, given: str | None, usual: int, *, fits: bool) -> int | None:
    """The round of a fault: as given, or `usual`; none, with a message, if that does not fit this swarm."""
    from shoal.node.base.options import UsageError

    if given is None:
        if not fits:
            print(
                f"shoal: the swarm is too small or its run too short for {flag} {usual}; none",
                file=sys.stderr,
            )
        return usual if fits else None
    if given == "none":
        return None
    if not given.isdecimal():
        raise UsageError(f"{flag} {given} is neither a round nor 'none'", code="bad-value")
    return int(given)


def report(
    folder: Annotated[Path, typer.Argument(help="The folder that `shoal up` has left, or the home of any node.")],
) -> None:
    """Make a report, to be read in a browser, of what a `shoal up` or any node has left on the disk.

    Of a `shoal up` these are report.html and loss.svg. Of a node it is a page for each run, with the last rounds as
    that node saw them; it says what is missing.
    """
    from shoal.node.base.home import Home

    home = Home(folder)
    if (folder / "metrics.jsonl").exists() or not home.runs.is_dir():
        from shoal.node.client.report.page import make_report

        print(make_report(folder))
        return
    from shoal.node.client.report.node_page import make_node_reports

    pages, lacking = make_node_reports(home)
    for why in lacking:
        print(f"no report: {printable(why)}", file=sys.stderr)
    print(*pages, sep="\n")
