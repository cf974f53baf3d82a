"""The peers of `make experts`: daemons, started as by `shoal up`, train a seed together, then experts apart.

Their progress and their traffic are read from their own counters. The results are files: the seed's checkpoint, and for
each family the folder that `shoal experts fetch` writes.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.experts_recipe import Recipe, text_of
from shoal.node.api.answers import Answer
from shoal.node.api.client import Client
from shoal.node.client.up.peers import LocalPeer
from shoal.node.client.up.plan import Plan
from shoal.node.client.up.processes import Children
from shoal.node.experts.parts import experts_of
from shoal.node.manifest.manifest import Manifest
from shoal.node.training.checkpoint.scan import CHECKPOINTS, newest_first
from shoal.protocol.base.errors import LocalError

POLL = 0.5  # seconds
REPORT_EVERY = 10.0  # seconds between two lines of progress
STALLED = 180.0  # seconds without progress after which the benchmark fails


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that all peers have sent in a phase."""

    training: int  # in runs that train: parameters, gradients, and messages between their members
    others: int  # all other traffic: the DHT, pings, probes, and published files


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of the benchmark; its results are in `folder`."""

    folder: Path
    seconds: float
    traffic: Traffic


class Play:
    """The peers, and what they do in each phase."""

    def __init__(self, recipe: Recipe, out: Path, children: Children, say: Callable[[str], None]) -> None:
        names = [f"peer-{number}" for number in range(1, len(experts_of(recipe.family).parts) + 1)]
        self._recipe, self._out, self._children, self._say = recipe, out, children, say
        self._plan = Plan(out, recipe.seed, tuple(names), recipe.seed_steps, None, None, (), 1)
        self._peers = [LocalPeer(name, out) for name in names]

    async def start(self) -> None:
        """Starts the daemons, each of which knows the first."""
        first, *others = self._peers
        first.start(self._children, self._plan, None)
        await first.ready()
        for peer in others:
            peer.start(self._children, self._plan, first.addresses[0])
        await asyncio.gather(*(peer.ready() for peer in others))
        await self._until(self._stranger)

    async def seed(self) -> Phase:
        """Trains the seed together; the phase's folder is its checkpoint."""
        manifest, began = self._recipe.seed, time.monotonic()
        before = await self._sent()
        run = await self._enter(manifest)
        sent = Counted(run)
        last = manifest.rounds.last

        async def is_left() -> str:
            rows = await self._rows(sent)
            if all(row.get("phase") == "finished" for row in rows) and self._checkpoint(run, last) is not None:
                return ""
            return f"the seed: round {min(row.get('round', 0) for row in rows)} of {last}"

        await self._until(is_left)
        found = self._checkpoint(run, last)
        assert found is not None
        folder = self._out / "seed"
        shutil.copytree(found, folder)
        traffic = Traffic(sent.total, await self._sent() - before - sent.total)
        await self._leave(run)
        return Phase(folder, time.monotonic() - began, traffic)

    async def family(self, manifest: Manifest, seed: Path) -> Phase:
        """Trains a family's experts apart; the phase's folder has the published files."""
        began, before = time.monotonic(), await self._sent()
        family = await self._enter(manifest, str(seed))
        sent, name = Counted(), manifest.name

        async def is_left() -> str:
            await self._rows(sent)
            shown = await self._ask_all(lambda client: client.experts(family))
            if all(row["finished"] and row["published"]["here"] for rows in shown for row in rows):
                return ""
            steps = (max(rows[part]["steps"] for rows in shown) for part in range(len(shown[0])))
            return f"{name}, steps: " + ", ".join(
                f"{row['part']} {made}/{row['of']}" for row, made in zip(shown[0], steps, strict=True)
            )

        await self._until(is_left)
        folder, seconds = self._out / name, time.monotonic() - began
        await self._ask(self._peers[0], lambda client: client.fetch_experts(family, str(folder)))
        traffic = Traffic(sent.total, await self._sent() - before - sent.total)
        await self._leave(family)
        return Phase(folder, seconds, traffic)

    # -- inside -----------------------------------------------------------------------------------------------

    async def _enter(self, manifest: Manifest, *checkpoint: str) -> str:
        founder, *others = self._peers
        text = text_of(manifest)
        made = await self._ask(founder, lambda client: client.create_run(text, True, checkpoint))
        await asyncio.gather(*(self._ask(peer, lambda client: client.join_run(made["link"], True)) for peer in others))
        return str(made["run"])

    async def _leave(self, run: str) -> None:
        await self._ask_all(lambda client: client.leave_run(run))

    async def _rows(self, sent: Counted) -> list[Answer]:
        """Notes what all runs of all peers have sent; each peer's row of the run that `sent` is about."""
        statuses = await self._ask_all(Client.status)
        found: list[Answer] = []
        for peer, status in zip(self._peers, statuses, strict=True):
            for row in status["runs"]:
                if failure := row.get("failure"):
                    raise LocalError(f"{peer.name}: {row['name']} has failed: {failure} (its log is {peer.log})")
                sent.see(peer.name, row)
            found.append(next((row for row in status["runs"] if row["run"] == sent.run), {}))
        return found

    async def _sent(self) -> int:
        statuses = await self._ask_all(Client.status)
        return sum(int(status["traffic"]["sent"]) for status in statuses)

    async def _stranger(self) -> str:
        """The peers that know no other yet, in words."""
        statuses = await self._ask_all(Client.status)
        known = [(status["dht"] or {}).get("servers") for status in statuses]
        alone = [peer.name for peer, servers in zip(self._peers, known, strict=True) if not servers]
        return f"{', '.join(alone)} to find the others" if alone else ""

    def _checkpoint(self, run: str, last: int | None) -> Path | None:
        """The founder's checkpoint of the last round, once it is on disk."""
        found = newest_first(self._peers[0].home.run_folder(run) / CHECKPOINTS)
        return next((each.path for each in found if each.about is not None and each.about.round == last), None)

    async def _ask_all(self, call: Callable[[Client], Any]) -> list[Any]:
        return list(await asyncio.gather(*(self._ask(peer, call) for peer in self._peers)))

    async def _ask(self, peer: LocalPeer, call: Callable[[Client], Any]) -> Any:
        if not peer.alive:
            raise LocalError(f"{peer.name} has died; {peer.last_words()}")
        return await peer.ask(call)

    async def _until(self, is_left: Callable[[], Awaitable[str]]) -> None:
        """Waits until `is_left` returns nothing; LocalError if its result stops changing before."""
        last, moved_at, said_at = "", time.monotonic(), 0.0
        while left := await is_left():
            now = time.monotonic()
            if left != last:
                last, moved_at = left, now
                if now >= said_at + REPORT_EVERY:
                    said_at = now
                    self._say(left)
            if now - moved_at > STALLED:
                raise LocalError(f"waited {STALLED:.0f} s for {left}, and nothing changes: see {self._out / 'logs'}")
            await asyncio.sleep(POLL)


class Counted:
    """The bytes that runs have sent, as last seen; `run` is the one that is waited for, if any."""

    def __init__(self, run: str = "") -> None:
        self.run = run
        self._bytes: dict[tuple[str, str], int] = {}

    def see(self, peer: str, row: Answer) -> None:
        """Notes a row of a peer's status."""
        self._bytes[peer, row["run"]] = int(row.get("bytes_sent") or 0)

    @property
    def total(self) -> int:
        """The sum over all peers and runs."""
        return sum(self._bytes.values())
