"""Enters the runs of `--create` and `--join` once the node runs.

Both are declarative: a run that the node is in already is not entered again. So the same command line works for every
start, as service managers and containers need it. Failures are tried again, because the other nodes may just be
starting. A node that is paused does not try.

A run that is named by its manifest's file is one in which the peers are that were named, too, by --bootstrap or by a
link: never one that others are in, who were met on the local network or in the DHT.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from shoal.node.api.answers import RunLink
from shoal.node.api.status import join_command
from shoal.node.base.logs import warn
from shoal.node.base.options import NodeSettings, UsageError, names_a_run
from shoal.node.base.pools import RECORDS
from shoal.node.base.room import or_no_room
from shoal.node.manifest.manifest import Manifest, load_manifest, manifest_text
from shoal.node.run.introduction import parse_run_name
from shoal.node.run.runs import Runs
from shoal.protocol.base.errors import ShoalError
from shoal.protocol.base.shortages import in_words

RETRY_FIRST, RETRY_MOST = 0.5, 15.0  # seconds between two tries

log = logging.getLogger("shoal.daemon")


class StartupRuns:
    """The runs of the command line. The constructor raises LocalError if a manifest cannot be read."""

    def __init__(self, settings: NodeSettings, runs: Runs) -> None:
        self._runs = runs
        self._train = settings.train
        self._links = {parse_run_name(each).run: each for each in settings.join if names_a_run(each)}
        self._named = [
            *settings.bootstrap,
            *(at for each in self._links.values() for at in parse_run_name(each).addresses),
        ]
        self._files = {each: _whole(Path(each)) for each in settings.join if not names_a_run(each)}
        if self._files and not self._named:
            raise UsageError(
                f"--join {next(iter(self._files))} finds its run among peers that you name: name a member of it with "
                "--bootstrap, or give the run's link",
                code="bad-flags",
            )
        self._create = settings.create
        self._created = load_manifest(settings.create) if settings.create else None
        self._open: dict[str, str] = {}  # runs that are not entered yet, in words, and why

    async def run(self) -> None:
        """Returns when all runs are entered."""
        async with asyncio.TaskGroup() as group:
            if self._create is not None and (created := self._created) is not None:
                is_in, enter = partial(self._runs.has_founded, created), partial(self._found, self._create)
                group.create_task(self._see_to(f"the run of {self._create}", is_in, enter))
            for run, link in self._links.items():
                enter = partial(self._runs.join, link, self._train)
                group.create_task(self._see_to(f"the run {run[:8]}", partial(self._runs.has, run), enter))
            for path, manifest in self._files.items():
                enter = partial(self._runs.join_at, self._named, manifest, self._train)
                group.create_task(self._see_to(f"a run of {path}", partial(self._runs.has_run_of, manifest), enter))

    def obstacle(self) -> str | None:
        """A run that is not entered yet, and why, in words; None if there is none."""
        return next((f"not yet in {run}: {why}" for run, why in self._open.items()), None)

    async def _found(self, manifest: Path) -> RunLink:
        answer = await self._runs.create(manifest_text(manifest), self._train)
        log.info("created run %s; on another machine: %s", answer["name"], join_command(answer))
        return answer

    async def _see_to(self, run: str, is_in: Callable[[], bool], enter: Callable[[], Awaitable[RunLink]]) -> None:
        pause, warned = RETRY_FIRST, ""
        while True:
            try:
                with or_no_room(f"entering {run}"):
                    if await RECORDS.run(is_in):
                        break
                    await self._unpaused(run)
                    self._open[run] = "entering it now"  # may take a while, even once a peer has answered
                    await enter()
            except (ShoalError, OSError, MemoryError) as error:
                self._open[run] = why = in_words(error)
                if pause > RETRY_FIRST and warned != why:  # not at the first try: the others may be just starting
                    warned = why
                    warn(log, "run-not-entered", f"not yet in {run}: {why}; trying again")
                await asyncio.sleep(pause)
                pause = min(RETRY_MOST, 2 * pause)
        self._open.pop(run, None)

    async def _unpaused(self, run: str) -> None:
        """Return once the node is not paused."""
        while self._runs.paused:
            self._open[run] = self._runs.paused
            await asyncio.sleep(RETRY_FIRST)


def _whole(path: Path) -> Manifest:
    """The manifest in a file; UsageError if a founder's node fills in what its run is known by."""
    manifest = load_manifest(path)
    if not manifest.model.is_complete:
        raise UsageError(
            f"--join {path} leaves its model to its founder, so it is not the manifest of its run: give the run's id",
            code="manifest-unfinished",
        )
    if manifest.data.name == "files" and not manifest.data.digest:
        raise UsageError(
            f"--join {path} does not name its text, so it is not the manifest of its founder's run: give the run's id",
            code="manifest-unfinished",
        )
    return manifest
