"""The families that this node is in: entered, found, left; and what they all need of the node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.node.asking.switchboard import Switchboard
from shoal.node.dataset.store import Dataset
from shoal.node.experts import showing
from shoal.node.experts.card import Write
from shoal.node.experts.ensemble import fetch_all
from shoal.node.experts.family import Family
from shoal.node.experts.library import Library
from shoal.node.experts.memory import known_files
from shoal.node.experts.sources import sources_of
from shoal.node.home import Home
from shoal.node.run.introduction import Introduction
from shoal.node.service import Answer, UnknownRun, find_run
from shoal.node.spec.data import DataSpec
from shoal.protocol.errors import LocalError
from shoal.protocol.identity import Identity
from shoal.protocol.ids import Digest, PeerId
from shoal.protocol.network import Network

if TYPE_CHECKING:
    from shoal.node.checkpoint.read import Checkpoint
    from shoal.node.peers.discovery import Discovery
    from shoal.node.run.runs import Runs


@dataclass(frozen=True, slots=True)
class Ground:
    """What a family needs of the node."""

    runs: Runs
    library: Library
    discovery: Discovery
    network: Network
    home: Home
    identity: Identity
    answers: Callable[[Digest], bool]  # whether a process here answers for that file


class Families:
    """All of one node, by their ids in hex."""

    def __init__(self, runs: Runs, home: Home, identity: Identity, network: Network) -> None:
        self.open: dict[str, Family] = {}
        self.discovery: Discovery | None = None  # the daemon's, once it has one
        self.switchboard = Switchboard(network, home.root)
        self.switchboard.on_offer, self.switchboard.on_use = self._offered, self._used
        self._runs, self._home, self._identity, self._network = runs, home, identity, network
        self._library = Library(home.experts, runs.data)

    def enter(self, found: Introduction, trains: bool, seed: Checkpoint | None) -> None:
        """Be in a family, which is on disk already."""
        if self.discovery is None:
            raise LocalError("this node cannot be in a family: it has no part in the DHT")
        of_node = (self._runs, self._library, self.discovery, self._network, self._home, self._identity)
        ground = Ground(*of_node, self.switchboard.answers)
        family = self.open[found.manifest.run_id.hex()] = Family(found, trains, ground)
        family.start(seed)

    async def close(self) -> None:
        """The node ends, or pauses."""
        families, self.open = list(self.open.values()), {}
        for family in families:
            await family.close()

    async def leave(self, family: Family) -> Answer:
        """Leave a family for good, and the run of its part with it."""
        del self.open[family.id.hex()]
        await family.close(for_good=True)
        return {"run": family.id.hex(), "name": family.manifest.name}

    async def keep(self, write: Write) -> Dataset:
        """A file that a family which is not founded yet needs."""
        await self._library.tidy(partial(known_files, self._home.runs))
        return await self._library.make(write)

    def path(self, file: Digest) -> Path:
        """Where a file is, if it is here."""
        return self._library.place(file)

    def with_partition(self, spec: DataSpec, paths: tuple[str, ...]) -> tuple[str, ...]:
        """What a worker reads, and last of it the partition's file, if the manifest names one."""
        file = spec.cluster.groups.file if spec.cluster is not None else ""
        return (*paths, str(self.path(Digest(bytes.fromhex(file))))) if file else paths

    def named(self, wanted: str) -> Family | None:
        """The same as `find`, None if no family is meant."""
        try:
            return self.find(wanted)
        except UnknownRun:
            return None

    def find(self, wanted: str) -> Family:
        """The family that a person means; UnknownRun if we are not in it."""
        return self.open[find_run(wanted, {key: each.manifest.name for key, each in self.open.items()}, "family")]

    def wants(self, digest: str) -> bool:
        """Whether a family is about the data of that digest."""
        return any(each.manifest.data.digest == digest for each in self.open.values())

    def experts(self, wanted: str) -> list[Answer]:
        """See NodeService."""
        return showing.parts_of(self.find(wanted))

    async def sources(self, wanted: str) -> Answer:
        """See NodeService.expert_sources."""
        return await sources_of(self.find(wanted), self.switchboard.path)

    async def fetch(self, wanted: str, folder: str) -> Answer:
        """See NodeService."""
        if not Path(folder).is_absolute():
            raise LocalError(f"{folder} is not an absolute path")
        return await fetch_all(self.find(wanted), Path(folder))

    def _offered(self) -> None:
        for family in self.open.values():
            family.stir()

    def _used(self, peer: PeerId) -> None:
        if self.discovery is not None:
            self.discovery.used(peer)

    def rows(self) -> list[Answer]:
        """For `status`."""
        return [showing.row(each) for each in self.open.values()]
