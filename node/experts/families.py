"""The families that this node is in: entered, found, left; and what they all need of the node."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.node.api.answers import Answer, ExpertRow, ExpertSources, FetchedExperts, RunName
from shoal.node.api.errors import UnknownRun, find_run
from shoal.node.base.home import Home
from shoal.node.experts import showing
from shoal.node.experts.card import Write
from shoal.node.experts.ensemble import fetch_all
from shoal.node.experts.family import Family
from shoal.node.experts.library import Library
from shoal.node.experts.memory import known_files
from shoal.node.experts.needs import Ground, NodeRuns
from shoal.node.experts.proxy import ExpertProxy
from shoal.node.experts.showing import sources_of
from shoal.node.manifest.data import DataSpec
from shoal.node.manifest.manifest import Introduction
from shoal.node.training.data.store import Dataset
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import Digest
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.system.identity import Identity

if TYPE_CHECKING:
    from shoal.node.peers.discovery import Discovery
    from shoal.node.training.checkpoint.read import Checkpoint


class Families:
    """All of one node, by their ids in hex."""

    def __init__(self, runs: NodeRuns, home: Home, identity: Identity, network: Network, discovery: Discovery) -> None:
        self.open: dict[str, Family] = {}
        self.proxy = ExpertProxy(network, home.root, on_offer=self._offered, on_use=discovery.used)
        self._discovery = discovery
        self._runs, self._home, self._identity, self._network = runs, home, identity, network
        self._library = Library(home.experts, runs.data)

    def enter(self, found: Introduction, trains: bool, seed: Checkpoint | None) -> None:
        """Be in a family, which is on disk already."""
        of_node = (self._runs, self._library, self._discovery, self._network, self._home, self._identity)
        ground = Ground(*of_node, self.proxy.answers)
        family = self.open[found.manifest.run_id.hex()] = Family(found, trains, ground)
        family.start(seed)

    async def close(self) -> None:
        """The node ends, or pauses."""
        families, self.open = list(self.open.values()), {}
        for family in families:
            await family.close()

    async def leave(self, family: Family) -> RunName:
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

    def experts(self, family: str) -> list[ExpertRow]:
        """The parts of a family."""
        return showing.parts_of(self.find(family))

    async def sources(self, family: str) -> ExpertSources:
        """Where the experts of a family can be had."""
        return await sources_of(self.find(family), self.proxy.path)

    async def fetch(self, family: str, folder: str) -> FetchedExperts:
        """Download all published experts of a family into a folder."""
        if not Path(folder).is_absolute():
            raise LocalError(f"{folder} is not an absolute path")
        return await fetch_all(self.find(family), Path(folder))

    def _offered(self) -> None:
        for family in self.open.values():
            family.stir()

    def rows(self) -> list[Answer]:
        """For `status`."""
        return [showing.row(each) for each in self.open.values()]
