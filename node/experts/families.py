"""The families that this node is in: entered, found, left; and what they all need of the node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.node.experts import showing
from shoal.node.experts.ensemble import fetch_all
from shoal.node.experts.family import Family
from shoal.node.experts.library import Library
from shoal.node.home import Home
from shoal.node.introduction import Introduction
from shoal.node.service import Answer, UnknownRun, find_run
from shoal.protocol.errors import LocalError
from shoal.protocol.identity import Identity
from shoal.protocol.network import Network

if TYPE_CHECKING:
    from shoal.node.checkpoint.read import Checkpoint
    from shoal.node.discovery import Discovery
    from shoal.node.runs import Runs


@dataclass(frozen=True, slots=True)
class Ground:
    """What a family needs of the node."""

    runs: Runs
    library: Library
    discovery: Discovery
    network: Network
    home: Home
    identity: Identity


class Families:
    """All of one node, by their ids in hex."""

    def __init__(self, runs: Runs, home: Home, identity: Identity, network: Network) -> None:
        self.open: dict[str, Family] = {}
        self.discovery: Discovery | None = None  # the daemon's, once it has one
        self._runs, self._home, self._identity, self._network = runs, home, identity, network
        self._library = Library(home.experts, runs.data)

    def enter(self, found: Introduction, trains: bool, seed: Checkpoint | None) -> None:
        """Be in a family, which is on disk already."""
        if self.discovery is None:
            raise LocalError("this node cannot be in a family: it has no part in the DHT")
        ground = Ground(self._runs, self._library, self.discovery, self._network, self._home, self._identity)
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

    def named(self, wanted: str) -> Family | None:
        """The same as `find`, None if no family is meant."""
        try:
            return self.find(wanted)
        except UnknownRun:
            return None

    def find(self, wanted: str) -> Family:
        """The family that a person means; UnknownRun if we are not in it."""
        return self.open[find_run(wanted, {key: each.manifest.name for key, each in self.open.items()})]

    def wants(self, digest: str) -> bool:
        """Whether a family is about the data of that digest."""
        return any(each.manifest.data.digest == digest for each in self.open.values())

    def experts(self, wanted: str) -> list[Answer]:
        """See NodeService."""
        return showing.parts_of(self.find(wanted))

    async def fetch(self, wanted: str, folder: str) -> Answer:
        """See NodeService."""
        if not Path(folder).is_absolute():
            raise LocalError(f"{folder} is not an absolute path")
        return await fetch_all(self.find(wanted), Path(folder))

    def rows(self) -> list[Answer]:
        """For `status`."""
        return [showing.row(each) for each in self.open.values()]
