"""What a family needs of its node. A part is trained in an ordinary run, which the family founds, watches and leaves.

node/run/ implements `NodeRuns` and `PartRun`; node/experts/ knows nothing else of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shoal.node.api.answers import LeftRun, RunLink
from shoal.node.base.home import Home
from shoal.node.experts.library import Library
from shoal.node.manifest.manifest import Introduction, Manifest
from shoal.node.training.data.supply import Supply
from shoal.protocol.base.ids import Digest, RunId
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.system.identity import Identity

if TYPE_CHECKING:  # a node without runs imports no torch
    from shoal.node.peers.discovery import Discovery
    from shoal.node.training.checkpoint.read import Checkpoint
    from shoal.node.training.state.committed import CommittedState


class CommittedRound(Protocol):
    """One committed round: its number, the tokens behind the state, and this node's loss in it, if it has trained."""

    @property
    def round(self) -> int: ...
    @property
    def samples(self) -> int: ...
    @property
    def loss(self) -> float | None: ...


class PartRun(Protocol):
    """The run in which a part is trained."""

    @property
    def id(self) -> RunId: ...
    @property
    def committed(self) -> CommittedState: ...
    @property
    def samples(self) -> int: ...
    @property
    def loss(self) -> float | None: ...
    @property
    def failure(self) -> str: ...
    @property
    def trouble(self) -> str: ...
    @property
    def is_finished(self) -> bool: ...
    @property
    def is_alone(self) -> bool: ...
    @property
    def is_stuck(self) -> bool: ...
    def committed_round(self, round: int) -> CommittedRound | None: ...


class NodeRuns(Protocol):
    """All runs that the node is in, by their ids in hex."""

    @property
    def open(self) -> Mapping[str, PartRun]: ...
    @property
    def restoring(self) -> Collection[str]: ...
    @property
    def paused(self) -> str: ...
    @property
    def data(self) -> Supply: ...
    def has(self, prefix: str) -> bool: ...
    def sign(self, manifest: Manifest) -> Introduction: ...
    async def found(self, found: Introduction, train: bool, loaded: Checkpoint | None) -> RunLink: ...
    async def leave(self, wanted: str) -> LeftRun: ...


@dataclass(frozen=True, slots=True)
class NodeServices:
    """All that one family needs of the node."""

    runs: NodeRuns
    library: Library
    discovery: Discovery
    network: Network
    home: Home
    identity: Identity
    answers: Callable[[Digest], bool]  # whether a process here answers for a file
