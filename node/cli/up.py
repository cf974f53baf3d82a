"""`shoal up`: a local swarm of real nodes, with one death and one newcomer, to see it all work."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from shoal.node.cli.flags import Json

KILL_AT = 4
JOIN_AT = 6


def up(
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
            help="Let a fresh peer join at this round; it takes part in the next.",
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
    manifest: Annotated[
        Path | None,
        typer.Option(envvar="SHOAL_UP_MANIFEST", help="A run manifest; without it, the built-in one."),
    ] = None,
    baseline: Annotated[
        bool,
        typer.Option("--baseline", envvar="SHOAL_UP_BASELINE", help="Also train alone and joined, to compare."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(envvar="SHOAL_UP_OUT", help="A folder for logs, metrics and states.")
    ] = None,
    seed: Annotated[int, typer.Option(envvar="SHOAL_UP_SEED", help="Of model and data.")] = 0,
    as_json: Json = False,
) -> None:
    """Run a swarm on this machine: train, lose a peer, gain a peer, agree to the bit."""
    from shoal.node.options import UpOptions

    options = UpOptions(
        peers=peers,
        rounds=rounds,
        kill_at=_round("--kill-at", kill_at, KILL_AT, fits=rounds >= KILL_AT and peers >= 3),
        join_at=_round("--join-at", join_at, JOIN_AT, fits=rounds > JOIN_AT),
        data=tuple(data or ()),
        manifest=manifest,
        baseline=baseline,
        out=out,
        seed=seed,
        json=as_json,
    )
    from shoal.node.up import main

    raise typer.Exit(main(options))


def _round(flag: str, given: str | None, usual: int, *, fits: bool) -> int | None:
    """The round of a fault: as given, or the usual one; if that does not fit this swarm, none, said aloud."""
    from shoal.node.options import UsageError

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
        raise UsageError(f"{flag} {given} is neither a round nor 'none'")
    return int(given)
