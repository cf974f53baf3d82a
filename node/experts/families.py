"""The families that this node is in, and what they share."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.node.api.answers import Answer, ExpertRow, ExpertSources, FetchedExperts, LeftRun
from shoal.node.api.errors import UnknownRun, find_run
from shoal.node.base.home import Home
from shoal.node.experts import showing
from shoal.node.experts.card import WriteFile
from shoal.node.experts.ensemble import fetch_all
from shoal.node.experts.family import Family
from shoal.node.experts.library import Library
from shoal.node.experts.needs import NodeRuns, NodeServices
from shoal.node.experts.proxy import ExpertProxy
from shoal.node.experts.records import known_files
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
    """All families of one node; `open` has them by their ids in hex."""

    def __init__(self, runs: NodeRuns, home: Home, identity: Identity, network: Network, discovery: Discovery) -> None:
        self.open: dict[str, Family] = {}
        self.proxy = ExpertProxy(network, home.root, on_offer=self._offered, on_use=discovery.used)
        self._discovery = discovery
        self._runs, self._home, self._identity, self._network = runs, home, identity, network
        self._library = Library(home.experts, runs.data)

    def enter(self, found: Introduction, trains: bool, seed: Checkpoint | None) -> None:
        """Enter a family, whose manifest is on disk already."""
        of_node = (self._runs, self._library, self._discovery, self._network, self._home, self._identity)
        services = NodeServices(*of_node, self.proxy.answers)
        family = self.open[found.run.hex()] = Family(found, trains, services)
        family.start(seed)

    async def close(self) -> None:
        """Close all families, as the node ends or pauses."""
        families, self.open = list(self.open.values()), {}
        for family in families:
            await family.close()

    async def leave(self, family: Family) -> LeftRun:
        """Leave a family for good, and the run of its part with it."""
        del self.open[family.id.hex()]
        await family.close(for_good=True)
        return {"run": family.id.hex(), "name": family.manifest.name}

    async def keep(self, write: WriteFile) -> Dataset:
        """Make a file for a family that is about to be founded."""
        await self._library.tidy(partial(known_files, self._home.runs))
        return await self._library.make(write)

    def path(self, file: Digest) -> Path:
        """Where a file is, if it is here."""
        return self._library.place(file)

    def with_partition(self, spec: DataSpec, paths: tuple[str, ...]) -> tuple[str, ...]:
        """The files that a worker reads, followed by the partition's file if the manifest names one."""
        file = spec.cluster.groups.file if spec.cluster is not None else ""
        return (*paths, str(self.path(Digest(bytes.fromhex(file))))) if file else paths

    def named(self, wanted: str) -> Family | None:
        """As `find`, but None if there is no such family."""
        try:
            return self.find(wanted)
        except UnknownRun:
            return None

    def find(self, wanted: str) -> Family:
        """The family with this name or id; UnknownRun if we are not in it."""
        return self.open[find_run(wanted, {key: each.manifest.name for key, each in self.open.items()}, "family")]

    def wants(self, digest: str) -> bool:
        """Whether a family uses the data of that digest."""
        return any(each.manifest.data.digest == digest for each in self.open.values())

    def is_part(self, run: str) -> bool:
        """Whether this is the run of a family's part, which is trained by one node alone."""
        return any(each.training.run == run for each in self.open.values())

    def experts(self, family: str) -> list[ExpertRow]:
        """The parts of a family."""
        return showing.parts_of(self.find(family))

    async def sources(self, family: str) -> ExpertSources:
        """Where the experts of a family are available."""
        return await sources_of(self.find(family), self.proxy.path)

    async def fetch(self, family: str, folder: str) -> FetchedExperts:
        """Download all published experts of a family into a folder."""
        if not Path(folder).is_absolute():
            raise LocalError(f"{folder} is not an absolute path", code="bad-value")
        return await fetch_all(self.find(family), Path(folder))

    def _offered(self) -> None:
        for family in self.open.values():
            family.wake()

    def rows(self) -> list[Answer]:
        """The families' rows in `status`."""
        return [showing.row(each) for each in self.open.values()]
