"""The interface of a node to its API: handlers for the operations, and what the page and the metrics read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shoal.node.api.answers import ExpertRow, PeerRow, Round, RunMetrics, Status
from shoal.node.api.operations import Handler


class NodeService(Protocol):
    """A running node: the daemon, or the tests' fake. The only errors that it means to raise are ShoalErrors."""

    def handlers(self) -> Sequence[Handler]:
        """The handlers of all operations."""

    def status(self) -> Status:
        """The node as it is now."""

    def peers(self) -> list[PeerRow]:
        """How each peer is reached."""

    def rounds(self, run: str, last: int | None = None) -> list[Round]:
        """A run's committed rounds; UnknownRun if this node is not in it."""

    def experts(self, family: str) -> list[ExpertRow]:
        """The parts of a family; UnknownRun if this node is not in it."""

    def meters(self) -> list[RunMetrics]:
        """The metrics of each open run."""
