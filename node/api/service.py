"""What a node is to its API: handlers for the operations, and what the page and the metrics look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shoal.node.api.answers import ExpertRow, PeerRow, Round, RunMetrics, Status
from shoal.node.api.operations import Handler


class NodeService(Protocol):
    """A running node: the daemon, or the fake of the tests. It raises ShoalErrors, and nothing else on purpose."""

    def handlers(self) -> Sequence[Handler]:
        """Who answers each operation."""
        ...

    def status(self) -> Status:
        """The node as it is now."""
        ...

    def peers(self) -> list[PeerRow]:
        """How each peer is reached."""
        ...

    def rounds(self, run: str, last: int | None = None) -> list[Round]:
        """A run's committed rounds; UnknownRun if this node is not in it."""
        ...

    def experts(self, family: str) -> list[ExpertRow]:
        """The parts of a family; UnknownRun if this node is not in it."""
        ...

    def meters(self) -> list[RunMetrics]:
        """What was counted of each run."""
        ...
